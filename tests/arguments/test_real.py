"""Launch commands as two installed releases resolve them themselves, against what is resolved from the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.engines.arguments import UNKNOWN, release_rules, resolve_launch
from eagle3lab.engines.arguments.context import VARIABLE, draft_context
from tests.arguments.real import Context, disagreements, real_arguments
from tests.support.small_models import EAGLE3_HEAD

from . import commands as sample

pytestmark = pytest.mark.engine

_ALWAYS_KNOWN = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "speculative_draft_model_quantization",
    "attention_backend",
    "page_size",
    "max_running_requests",
)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_commands_are_resolved_as_the_release_does(release: str, tmp_path: Path) -> None:
    sample.write_models(tmp_path)
    asked = sample.commands(tmp_path)
    rules = release_rules(release)
    wrong: list[str] = []
    unknown: list[str] = []
    refused = 0
    contexts = [
        Context(tmp_path / "head", tokens, environment)
        for tokens in (2048, 4096, 8192)
        for environment in ({}, {VARIABLE: "1"})
    ]
    answers, lengths = real_arguments(release, asked, contexts)
    assert rules.draft_context is not None
    for given, real_length in zip(contexts, lengths, strict=True):
        ours_length = draft_context(
            rules.draft_context, sample.CONFIGS["qwen"], EAGLE3_HEAD, given.context_length, given.environment
        )
        assert ours_length is not None
        if isinstance(real_length, int):
            assert ours_length.length == real_length
        else:
            assert ours_length.length is None
            assert ours_length.message in real_length
    for command, real in zip(asked, answers, strict=True):
        target = Path(command.words[1]).name
        ours = resolve_launch(
            command.words,
            rules,
            target=sample.CONFIGS[target],
            drafter=sample.CONFIGS["head"],
            machine=command.machine,
            environment=command.environment,
        )
        shown = f"{target} {' '.join(command.words[2:])} on {command.machine.capability}"
        wrong += [f"{shown}: {one}" for one in disagreements(ours, real)]
        refused += bool(real.exception)
        if not real.exception:
            unknown += [f"{shown}: {name}" for name in _ALWAYS_KNOWN if ours.value(name) is UNKNOWN]
            unknown += [f"{shown}: may raise {one.message}" for one in ours.refusals]
    assert not wrong, "\n".join(wrong)
    assert not unknown, "\n".join(unknown)
    assert len(asked) >= 60
    assert 8 <= refused <= 30
