"""What a death means: the engine's own words looked up, values compared with the configs, causes that it can have."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.release import SIMULATED, Release

if TYPE_CHECKING:
    from eagle3lab.acceptance.tracebacks import Death, Raised
    from eagle3lab.engines.messages import Match

_NO_ATTRIBUTE = re.compile(
    r"'(?P<cls>\w+)' object has no attribute '(?P<name>\w+)'|type object '(?P<type>\w+)' has no"
)
_HOOKS = ("set_eagle3_layers_to_capture", "set_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers")
_HANDED = ("get_embed_and_head", "get_embed", "get_input_embeddings")
_DRAFTS = ("set_embed", "hot_token_id", "set_embed_and_head", "draft_id_to_target_id")
_BOUND = re.compile(
    r"0 <= \w+ < (\d+)|index out of bounds: 0 <= .{1,40} < (\d+)|< (\d+)\b[^`]{0,40}`? failed"
)
_PRODUCT = re.compile(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x(\d+)\)")
_FUSES = re.compile(r"\bfc\(|combine_hidden_states")
_FIELD = re.compile(r"[Ff]ield '(\w+)'")
# What a server that accepted drafts before it died has shown to be right.
_SHOWN_RIGHT = (
    "files.", "names.", "head.", "head-kind.", "vocab.", "capture.", "flags.draft-path", "flags.method",
    "layer.dtype", "layer.quantisation",
)  # fmt: skip
_VALUE_ERROR = re.compile(
    r"validation errors? for .*?(?:Value|Assertion) error, (.*?)\s*(?:\[type=|$)", re.DOTALL
)
_OUTRIGHT = 0.85
FAULTS = (
    "files.missing", "files.unreadable", "head-kind.architecture", "head-kind.config-dialect",
    "head-kind.config-value", "head-kind.layer-count", "head-kind.not-eagle3", "names.missing",
    "names.rejected", "names.shape", "names.tensor-parallel", "names.unsupported-tensor", "flags.backend",
    "flags.draft-path", "flags.draft-tokens", "flags.incompatible", "flags.method", "flags.own-mtp",
    "capture.algorithm", "capture.engine-defect", "capture.ids-count", "capture.ids-range",
    "capture.target-incomplete", "capture.target-unsupported", "capture.width", "head.embedding",
    "head.lm-head-rows", "head.tied", "vocab.absolute", "vocab.double-offset", "vocab.dtype", "vocab.range",
    "layer.activation", "layer.context", "layer.dtype", "layer.quantisation", "runtime.engine-defect",
)  # fmt: skip
"""Every cause that a crash can be named by, besides `runtime.crash`."""
_POSITIONS = 262_144


@dataclass(frozen=True, slots=True)
class Crash:
    """What a server died of, and what that can mean.

    Attributes:
        error: The exception on one line, or the line that says that the server died.
        rank: Rank or process that wrote it; "" where none is named.
        line: 1-based line of the log where it begins.
        explains: Slugs it can come from, the likeliest first; () where it says nothing about a cause.
        sure: How sure the first of them is without other evidence, 0 to 1; 0 where it is not said alone.
        meaning: What it means, after "The server died: ".
        fix: What to do about it.
        seen: Further evidence, in sentences: where the engine says it, values, what served before.
        served: Whether drafts were being served before.
    """

    error: str
    rank: str
    line: int
    explains: tuple[str, ...] = ()
    sure: float = 0.0
    meaning: str = "the exception is not one that says anything about the drafter"
    fix: str = "Read the first traceback; later ones and signals follow from it."
    seen: tuple[str, ...] = ()
    served: bool = False

    @property
    def alone(self) -> bool:
        """Whether the first cause is said without other evidence."""
        return self.sure > 0

    def without(self, cleared: Collection[str]) -> Crash:
        """Without the causes that were looked for and not found; what the exception says outright stays."""
        outright = self.explains[:1] if self.sure >= _OUTRIGHT else ()
        left = tuple(slug for slug in self.explains if slug in outright or slug not in cleared)
        return replace(self, explains=left, sure=self.sure if left[:1] == self.explains[:1] else 0.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What else is known, to compare values with.

    Attributes:
        release: Engine and release; None where not known.
        config: The drafter's config as stored.
        sizes: Name in a sentence to a size: "the draft vocabulary" to 32000.
        target: The target's class; "" where not known.
        useful: Whether the log shows useful acceptance before the death.
    """

    release: Release | None = None
    config: Mapping[str, Any] | None = None
    sizes: Mapping[str, int] | None = None
    target: str = ""
    useful: bool = False


def crash_of(death: Death, known: Known) -> Crash:
    """What a death means.

    The exceptions of a chain are judged one after the other, the root first; the first that says anything counts.
    """
    judged = [_judged(one, death, known) for one in death.raised]
    crash = next((one for one in judged if one.explains), judged[-1] if judged else _silent(death))
    crash = replace(
        crash, error=crash.error or death.error, rank=death.worker, line=death.line, served=death.served,
        seen=(*crash.seen, *_raised_again(crash, death), *_when(death)),
    )  # fmt: skip
    if not (death.served and known.useful):
        return crash
    left = tuple(slug for slug in crash.explains if not slug.startswith(_SHOWN_RIGHT))
    if left == crash.explains:
        return crash
    said = "the drafter was loaded and accepted before, so names, shapes, token map and layer ids are not the cause"
    return replace(
        crash, explains=left, sure=crash.sure if left and crash.sure else 0.0, seen=(*crash.seen, said),
        meaning=crash.meaning if left else "something that did not stop it for a while", fix=Crash("", "", 0).fix,
    )  # fmt: skip


def _raised_again(crash: Crash, death: Death) -> list[str]:
    """What a chain ended in, where its cause is an exception before."""
    last = str(death.error).partition("\n")[0]
    return [f"it was raised again as {last}"] if crash.error and last and last not in crash.error else []


def _silent(death: Death) -> Crash:
    """A death without an exception."""
    row = next((row for row in _rows() if "frames" not in row and _fits(row, death.said, "", "")), None)
    if row is not None and not death.cut:
        return _by_row(row, death.said)
    meaning = (
        "its traceback breaks off before the exception"
        if death.cut
        else "the log holds no exception that says why"
    )
    return Crash(
        death.said, "", 0, meaning=meaning, fix="Look for the whole log: every rank's first traceback."
    )


def _judged(raised: Raised, death: Death, known: Known) -> Crash:
    if inner := _VALUE_ERROR.search(raised.text):  # pydantic's report of what a class of the engine raised
        raised = replace(raised, error="ValueError", text=inner[1])
    frames = "\n".join(
        [
            *(text for _, text in death.asserts),
            *(str(frame) for frame in raised.frames),
            *raised.text.split("\n")[1:],
        ]
    )
    match = _said_by_engine(raised, known)
    file = match.file if match else _engine_file(raised)
    error = str(raised).partition("\n")[0]
    found = (
        _of_attribute(raised, known)
        or _of_bound(raised, death, known)
        or _of_fusion(raised)
        or next((_by_row(row, error) for row in _rows() if _fits(row, str(raised), file, frames)), None)
        or (_own_words(error) if match else Crash(error, "", 0))
    )
    return replace(
        found, seen=(*found.seen, *_words_of(match, known), *_part(raised), *_field(raised, known))
    )


def _said_by_engine(raised: Raised, known: Known) -> Match | None:
    """The engine's statement that raised it."""
    from eagle3lab.acceptance.tracebacks import in_engine
    from eagle3lab.engines.messages import match

    inner = next(in_engine(raised.frames), None)
    kinds = [known.release.kind] if known.release and known.release.simulated else list(SIMULATED)
    if inner is not None:
        kinds = [kind for kind in kinds if f"/{kind}/" in inner.file] or kinds
    for kind in kinds:
        found = match(
            kind, raised.error, raised.text, release=known.release.number if known.release else "",
            file=inner.file if inner else "", code=inner.code if inner else "",
        )  # fmt: skip
        if found is not None:
            return found
    return None


def _engine_file(raised: Raised) -> str:
    """The engine's file that was innermost, relative to its package; "" where no frame is the engine's."""
    from eagle3lab.acceptance.tracebacks import in_engine

    inner = next(in_engine(raised.frames), None)
    return re.sub(r"^.*/(?:sglang/srt|sglang|vllm)/", "", inner.file) if inner else ""


def _words_of(match: Match | None, known: Known) -> list[str]:
    """Where the engine says it, under which condition, with which values and options."""
    if match is None:
        return []
    kind = known.release.name if known.release else "the engine"
    span = match.since if match.since == match.until else f"{match.since} to {match.until}"
    where = f"{kind} {match.release} raises it at {match.source} (in {span})"
    condition = match.template.condition
    verb = "does not hold" if match.template.error == "AssertionError" else "holds"
    values = ", ".join(
        f"{name} is {value}" for name, value in match.values.items() if value and len(value) < 120
    )
    said = [where + (f", where this {verb}: {condition}" if condition else "")]
    return [
        *said,
        *([values] if values else []),
        *([f"it names {', '.join(match.flags)}"] if match.flags else []),
    ]


def _own_words(error: str) -> Crash:
    meaning = "the engine stopped itself, and no rule here says why"
    return Crash(error, "", 0, ("runtime.engine-defect",), 0.6, meaning, "Do what the message says.")


def _when(death: Death) -> list[str]:
    if not death.served:
        return []
    seconds = death.served_s
    if not seconds > 0:
        return ["the server had answered before it died"]
    spent = (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
    return [f"the server had served for {spent} before it died"]


# ---- what values say -------------------------------------------------------------------------------------------------


def _of_attribute(raised: Raised, known: Known) -> Crash | None:
    """`'X' object has no attribute 'y'`: which class it is and what was asked of it."""
    match = _NO_ATTRIBUTE.search(raised.text)
    if raised.error != "AttributeError" or match is None:
        return None
    cls, name = match["cls"] or match["type"] or "", match["name"] or ""
    error = str(raised).partition("\n")[0]
    if name in _HOOKS:
        meaning = f"the target's class {cls} has no hook for auxiliary hidden states in this release"
        fix = "Use a release whose class for this target has it."
        return Crash(error, "", 0, ("capture.target-unsupported",), 0.95, meaning, fix)
    if name in _HANDED:
        meaning = (
            f"the target's class {cls} gives no embedding and head, which the speculative worker asks for"
        )
        fix = "Use a release whose class for this target has the method, or add it there."
        return Crash(
            error, "", 0, ("capture.target-incomplete", "capture.target-unsupported"), 0.9, meaning, fix
        )
    if "Backend" in cls:
        meaning = f"the attention backend {cls} lacks what speculation needs here"
        fix = "Use another --attention-backend or --speculative-draft-attention-backend, or another release."
        return Crash(error, "", 0, ("flags.backend", "runtime.engine-defect"), 0.8, meaning, fix)
    if name not in _DRAFTS:
        return _lacking(error, cls, name, raised, known)
    if re.search(r"NextN|MTP", cls):
        meaning = f"{cls} is the target's own layer for several tokens, served as if it were an EAGLE-3 head"
        fix = "Serve it with --speculative-algorithm EAGLE (or NEXTN) and without a draft path."
        return Crash(
            error, "", 0, ("head-kind.not-eagle3", "flags.own-mtp", "flags.method"), 0.9, meaning, fix
        )
    if cls.endswith("Eagle"):
        meaning = "the drafter was built as an EAGLE-1/2 class, which has no token map"
        fix = "Serve it with --speculative-algorithm EAGLE, or give an EAGLE-3 head."
        return Crash(error, "", 0, ("head-kind.not-eagle3", "head-kind.architecture"), 0.9, meaning, fix)
    meaning = f"the model loaded as the drafter is {cls}, a language model, not a drafter"
    fix = "Give --speculative-draft-model-path, and check the drafter's architectures."
    causes = ("flags.draft-path", "head-kind.architecture", "head-kind.not-eagle3")
    return Crash(error, "", 0, causes, 0.9, meaning, fix)


def _lacking(error: str, cls: str, name: str, raised: Raised, known: Known) -> Crash | None:
    """A model class that was asked for something by the speculative worker or the model runner."""
    stated = (known.config or {}).get("architectures")
    if cls.endswith("Config") and not re.match(
        r"(Model|Speculative|Vllm|Scheduler|Parallel|Cache|Load)Config", cls
    ):
        meaning = f"the config gives no {name}, which this release reads"
        fix = f"State {name} in the config.json of the model that {cls} is for."
        return Crash(error, "", 0, ("head-kind.config-value",), 0.85, meaning, fix)
    if not re.search(r"For(CausalLM|ConditionalGeneration)", cls):
        return None
    if isinstance(stated, list) and cls in stated and cls != known.target:
        meaning = f"the class {cls}, which the head's config names, lacks {name}"
        fix = "Write the drafter class of this release into architectures."
        return Crash(error, "", 0, ("head-kind.architecture", "head-kind.not-eagle3"), 0.8, meaning, fix)
    if re.search(
        r"speculative/|spec_decode/|model_runner|cuda_graph", " ".join(one.file for one in raised.frames)
    ):
        meaning = f"the target's class {cls} lacks {name}, which speculation asks for in this release"
        fix = "Use a release whose class for this target has it."
        return Crash(
            error, "", 0, ("capture.target-incomplete", "capture.target-unsupported"), 0.75, meaning, fix
        )
    return None


def _of_fusion(raised: Raised) -> Crash | None:
    """A product of shapes that do not fit, raised where fc fuses the target's states: how many arrived."""
    shapes = _PRODUCT.search(raised.text)
    if shapes is None or not any(_FUSES.search(f"{one.function} {one.code}") for one in raised.frames[-6:]):
        return None
    arrived, wanted, hidden = int(shapes[1]), int(shapes[2]), int(shapes[3])
    meaning = f"{arrived} columns of hidden states reach fc, which fuses {wanted}"
    if not arrived % hidden and not wanted % hidden:
        meaning += f": {arrived // hidden} states of {hidden} instead of {wanted // hidden}"
    causes = ("capture.ids-range", "capture.ids-count", "capture.width", "names.shape")
    return Crash(
        str(raised).partition("\n")[0], "", 0, causes, 0.7, meaning,
        "Name as many layer ids, all of them layers of this target, as fc fuses states.",
    )  # fmt: skip


def _of_bound(raised: Raised, death: Death, known: Known) -> Crash | None:
    """An assertion on the device that names its bound: which size that is."""
    if not re.search(r"device-side assert|illegal memory access|index out of", str(raised)):
        return None
    bounds = [
        int(next(filter(None, match.groups())))
        for _, text in death.asserts
        if (match := _BOUND.search(text)) is not None
    ]
    if not bounds:
        return None
    bound, sizes = bounds[0], known.sizes or {}
    names = [name for name, size in sizes.items() if size == bound]
    error = str(raised).partition("\n")[0]
    seen = [text for _, text in death.asserts[:1]]
    positions = "longest position" in " ".join(names) or (
        not names and bound <= _POSITIONS and not bound & (bound - 1)
    )
    if names:
        seen.append(f"{bound} is {' and '.join(names)}")
    if positions:
        meaning = f"a position of {bound} or more left the drafter's table of positions"
        fix = "State the drafter's true max_position_embeddings, or limit the served context to it."
        return Crash(error, "", 0, ("layer.context",), 0.9 if names else 0.6, meaning, fix, tuple(seen))
    if not names:
        return None
    meaning = f"an index of {bound} or more left a table of {bound} rows"
    causes = ("vocab.range", "vocab.absolute", "vocab.double-offset", "head.lm-head-rows")
    return Crash(
        error, "", 0, causes, 0.0, meaning, "Look at the token map and the head's rows.", tuple(seen)
    )


def _part(raised: Raised) -> list[str]:
    """The part of a model that was being built, by the assignment that its file stood at: `self.fc = Linear(…)`."""
    for frame in reversed(raised.frames):
        match = re.match(r"self\.(\w+)\s*=\s*\w", frame.code)
        if match and re.search(r"/models/\w+\.py$", frame.file):
            return [f"{match[1]} was being built ({frame.file.rpartition('/')[2]}:{frame.line})"]
    return []


def _field(raised: Raised, known: Known) -> list[str]:
    """The config field that a strict config class names, as the drafter's config has it."""
    match = _FIELD.search(raised.text)
    if match is None or known.config is None:
        return []
    name = match[1]
    if name not in known.config:
        return [f"the drafter's config.json does not state {name}: the message may be about the target's"]
    value = known.config[name]
    return [f"the drafter's config.json has {name}: {json.dumps(value)[:80]}"]


# ---- the table -------------------------------------------------------------------------------------------------------


@cache
def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("crashes.toml").read_text("utf-8"))[
        "crash"
    ]
    return rows


def _fits(row: Mapping[str, Any], error: str, file: str, frames: str) -> bool:
    if "file" in row and not (file and re.fullmatch(row["file"], file)):
        return False
    if "frames" in row and not re.search(row["frames"], frames):
        return False
    return "error" not in row or re.search(row["error"], error) is not None


def _by_row(row: Mapping[str, Any], error: str) -> Crash:
    return Crash(error, "", 0, tuple(row["explains"]), row["sure"], row["meaning"], row["fix"])
