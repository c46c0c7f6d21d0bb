"""What a run folder says about the served drafter: acceptance as counted by the server, and what the probe saw."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagle3lab.acceptance.run import MOST_COUNTED, Counts, count_answers, pooled_counters
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import BENCH, RunFolder
from eagle3lab.serving.client import ServerError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.runs.events import RankEvents


@dataclass(frozen=True, slots=True)
class Crossing:
    """What came into the drafter in one phase.

    Attributes:
        phase: `extend`, `draft_extend` or `decode`.
        width: Columns of the hidden states.
        passes: Forward passes with that width, in one rank.
        fc_ran: Whether fc was seen to be applied in them; None where that was not seen.
        hidden_shape: Of one such pass, [tokens, width]; empty where none was seen in full.
        embeds_shape: Of its token embeddings.
        fused: Whether fc fused the states: as it was seen, else as their width tells; None where neither does.
        rehearsal: Whether such passes were only seen before the server was ready, as when a CUDA graph was captured.
    """

    phase: str
    width: int
    passes: int
    fc_ran: bool | None
    hidden_shape: tuple[int, ...]
    embeds_shape: tuple[int, ...]
    fused: bool | None = None
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe saw in the first rank; ranks of one tensor-parallel group do the same.

    Attributes:
        ranks: Event files.
        drafter: Class of the drafter that was built.
        boundary: What crossed from target to drafter.
        offered: Names of the drafter's checkpoint; None where its loading was not seen.
        dropped: Names whose values went nowhere.
        never_written: Parameters that nothing wrote.
        captured: Ids of the layers whose states the target captures; None without such a call.
        chain: Classes that the call went through.
        notes: What the probe could not attach to, where it failed, what of its files is missing.
    """

    ranks: int
    drafter: str | None
    boundary: tuple[Crossing, ...]
    offered: int | None
    dropped: tuple[str, ...]
    never_written: tuple[str, ...]
    captured: tuple[int, ...] | None
    chain: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run, summed up.

    Attributes:
        counts: Acceptance over the measured requests.
        counted_from: Whose counts they are: those of each `requests` answer, or the probe's `events`, which count
            warm-up too.
        draft_tokens: D as the server used it, the root included: D - 1 drafts are proposed in each verification.
        release: The engine's release; None where it is not known.
        outputs: Token ids of each answer, in the order of the prompts.
        tokens: Generated in all answers.
        seconds: From the first request sent to the last answer.
        last_decode_line: The log's last line with an accept length, as printed; None without one.
        seen: What the probe saw; None without it.
        run_dir: The run folder.
    """

    counts: Counts
    counted_from: Literal["requests", "events"]
    draft_tokens: int
    release: str | None
    outputs: tuple[tuple[int, ...], ...]
    tokens: int
    seconds: float
    last_decode_line: str | None
    seen: Seen | None
    run_dir: Path

    @property
    def verify_steps(self) -> int:
        """Verifications by the target."""
        return self.counts.verify_steps

    @property
    def accepted(self) -> int:
        """Drafts accepted in them."""
        return self.counts.accepted

    @property
    def accept_length(self) -> float:
        """Tokens per verification, bonus included: 1 + accepted drafts / verifications."""
        return 1 + self.accepted / self.verify_steps

    @property
    def accept_rate(self) -> float:
        """Accepted drafts / proposed drafts, the true rate, whatever the release prints."""
        return self.accepted / (self.verify_steps * (self.draft_tokens - 1))


def _seen(ranks: Sequence[RankEvents]) -> Seen | None:
    from eagle3lab.runs.events import Boundary, Built, Captured, Counters, Loaded, Quiet
    from eagle3lab.runs.judgement import fused

    if not ranks:
        return None
    # A process without a model, such as the one that only routes requests, reports nothing but its start.
    first = max(ranks, key=lambda rank: (rank.last(Loaded) is not None, -rank.attached.tp_rank))
    counters, loaded, captured = first.last(Counters), first.last(Loaded), first.last(Captured)
    built = next((one for one in reversed(first.of(Built)) if one.role == "drafter"), None)
    examples: dict[tuple[str, int], Boundary] = {}
    passes: Counter[tuple[str, int]] = Counter()
    for boundary in first.of(Boundary):
        key = (boundary.phase, boundary.hidden_shape[-1] if boundary.hidden_shape else 0)
        if key not in examples or examples[key].rehearsal:
            examples[key] = boundary
        passes[key] += not boundary.rehearsal
    if counters is not None:
        for name, number in counters.widths.items():
            where, _, columns = name.rpartition(":")
            if columns.isdecimal():
                passes[where, int(columns)] = max(number, passes[where, int(columns)])
    crossings = []
    for (phase, width), number in sorted(passes.items()):
        example = examples.get((phase, width))
        ran = example.fc_ran if example else None
        crossings.append(
            Crossing(
                phase,
                width,
                number,
                ran,
                tuple(example.hidden_shape) if example else (),
                tuple(example.embeds_shape) if example else (),
                ran if built is None else fused(ran, width, built),
                example is not None and example.rehearsal,
            )
        )
    notes = [f"the probe found no {what}" for what in first.attached.missing]
    for rank in ranks:
        notes += [f"the probe failed at {quiet.where}: {quiet.problem}" for quiet in rank.of(Quiet)]
        notes += rank.notes
    return Seen(
        len(ranks),
        built.cls if built else None,
        tuple(crossings),
        loaded.offered if loaded else None,
        tuple(loaded.dropped) if loaded else (),
        tuple(loaded.never_written) if loaded else (),
        tuple(captured.layers) if captured else None,
        tuple(captured.chain) if captured else (),
        tuple(printable(note) for note in dict.fromkeys(notes)),
    )


def account(folder: RunFolder) -> Measurement:
    """Sum up a run from what it left behind.

    Raises:
        InputError: The folder is damaged, or does not say how many draft tokens a verification takes.
        ServerError: The server decoded without speculation, or answered nothing.
    """
    ranks = folder.events()
    requests = [each for each in folder.requests() if each.phase == "measured"]
    counted = pooled_counters(ranks)
    # The server adjusts what it was asked for: with one branch D is always steps + 1.
    info = folder.server_info() or {}
    used, steps = info.get("speculative_num_draft_tokens"), info.get("speculative_num_steps")
    draft_tokens = (
        used if isinstance(used, int) else folder.draft_tokens or (counted.draft_tokens if counted else None)
    )
    if draft_tokens is None or draft_tokens < 2:
        raise InputError(
            "the run does not say how many draft tokens a verification takes",
            path=folder.path,
            advice="Give --speculative-num-draft-tokens when the server is started",
        )
    answered = count_answers([each.meta_info for each in requests], draft_tokens)
    counts = answered or counted
    if counts is None:
        raise ServerError(
            "the answers say nothing about speculation: the server decodes without it, or is of a release that does "
            "not tell where chats are answered; the probe tells"
        )
    source: Literal["requests", "events"] = "requests" if answered else "events"
    # No source tells of positions that were never accepted.
    if counts.positions is not None and isinstance(steps, int):
        positions = counts.positions + (0,) * (min(steps, MOST_COUNTED) - len(counts.positions))
        counts = replace(counts, positions=positions)
    tokens, seconds = bench_totals(folder) or (sum(each.completion_tokens for each in requests), 0.0)
    if requests:
        seconds = max(each.ended_s for each in requests) - min(each.started_s for each in requests)
    return Measurement(
        counts,
        source,
        draft_tokens,
        folder.release,
        tuple(tuple(each.output_ids) for each in requests),
        tokens,
        seconds,
        _last_decode_line(folder.log),
        _seen(ranks),
        folder.path,
    )


def bench_totals(folder: RunFolder) -> tuple[int, float] | None:
    """Tokens generated and seconds taken, as SGLang's benchmark reports them; None where it did not run to its end."""
    try:
        lines = (folder.path / BENCH).read_text(encoding="utf-8").splitlines()
        result = json.loads(lines[-1])
        return int(result["total_output_tokens"]), float(result["duration"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _last_decode_line(log: Path) -> str | None:
    last = None
    if log.is_file():
        with log.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if "accept len:" in line:
                    last = line.rstrip("\r\n")
    return last
