"""What a served drafter's proposals are worth, counted by the server itself, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.serving.client import Generation, RunningServer
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.errors import ServerError
from eagle3lab.serving.launch import LaunchPlan
from eagle3lab.serving.server import Server


@dataclass(frozen=True, slots=True)
class Measurement:
    """Acceptance over some requests.

    Attributes:
        verify_steps: Verifications by the target.
        accepted: Drafts accepted in them.
        draft_tokens: D, the root included: D - 1 drafts are proposed in each verification.
        outputs: Token ids of each answer.
        last_decode_line: The log's last line with an accept length, as printed; None without one.
    """

    verify_steps: int
    accepted: int
    draft_tokens: int
    outputs: tuple[tuple[int, ...], ...]
    last_decode_line: str | None

    @property
    def accept_length(self) -> float:
        """Tokens per verification, bonus included: 1 + accepted drafts / verifications."""
        return 1 + self.accepted / self.verify_steps

    @property
    def accept_rate(self) -> float:
        """Accepted drafts / proposed drafts, the true rate, whatever the release prints."""
        return self.accepted / (self.verify_steps * (self.draft_tokens - 1))


def count(answers: Sequence[Generation], draft_tokens: int, log: Sequence[str] = ()) -> Measurement:
    """Pool the `meta_info` of some answers.

    Per request every release reports `spec_verify_ct` and `spec_accept_rate`, the latter without the bonus token:
    accepted / (verifications × (D - 1)) from 0.5.6 on (SGLang 0.5.9 managers/tokenizer_manager.py, 0.5.23
    managers/tokenizer_manager.py).

    Raises:
        ServerError: An answer carries no such fields: the server does not speculate.
    """
    verify_steps = accepted = 0
    for answer in answers:
        try:
            steps, rate = int(answer.meta["spec_verify_ct"]), float(answer.meta["spec_accept_rate"])
        except (KeyError, TypeError, ValueError):
            raise ServerError(
                "the answers say nothing about speculation: the server decodes without it"
            ) from None
        verify_steps += steps
        accepted += round(rate * steps * (draft_tokens - 1))
    decode = [line for line in log if "accept len:" in line]
    outputs = tuple(tuple(answer.token_ids) for answer in answers)
    return Measurement(verify_steps, accepted, draft_tokens, outputs, decode[-1] if decode else None)


def ask(
    server: RunningServer, prompts: Sequence[str | Sequence[int]], draft_tokens: int, max_new_tokens: int = 48
) -> Measurement:
    """Have a running server answer `prompts` greedily, stopping at the end of each answer, and count."""
    answers = server.generate(prompts, max_new_tokens, concurrency=4, stop_at_eos=True)
    return count(answers, draft_tokens, server.log_lines())


def measure(
    plan: LaunchPlan,
    engine: Engine,
    prompts: Sequence[str | Sequence[int]],
    run_dir: Path,
    *,
    max_new_tokens: int = 48,
) -> Measurement:
    """Start a server, have it answer `prompts`, stop it.

    Args:
        plan: What to serve and how; must say how many draft tokens.
        engine: The release.
        prompts: Texts or token ids.
        run_dir: A new folder for the plan, the command, the log.
        max_new_tokens: Length at which an answer is cut.

    Raises:
        ServerError: The server does not start, ends, or does not speculate.
    """
    if plan.draft_tokens is None:
        raise ServerError("the plan does not say how many draft tokens a verification takes")
    with Server.start(plan, run_dir, engine) as server:
        return ask(server, prompts, plan.draft_tokens, max_new_tokens)
