"""What two installed releases' own target classes capture, against the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3lab.checkpoint.config import parse_config
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.capture import Points, capture_plan
from tests.capture.real import RealTarget, real_capture
from tests.support.small_models import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    EAGLE3_HEAD,
    KIMI_K25,
    LAYERS,
    LLAMA,
    QWEN3,
)

pytestmark = pytest.mark.engine

_MODULES = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "DeepseekV3ForCausalLM": "deepseek_v2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "KimiK25ForConditionalGeneration": "kimi_k25",
}
_CONFIGS: tuple[dict[str, Any], ...] = (LLAMA, QWEN3, DEEPSEEK_V3, DEEPSEEK_V2, KIMI_K25)
_IDS: tuple[Points | None, ...] = (None, (1, 5, 8), (2, 6, 9), (0, 5, 8), (1, 3, 9), (5, 1, 8), (3,))


def _drafter(ids: Points | None) -> Any:
    raw = dict(EAGLE3_HEAD)
    if ids is not None:
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(ids)}
    return parse_config(raw, "", Path("config.json"))


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_the_classes_capture_what_the_plan_says(release: str) -> None:
    targets = [
        RealTarget(
            f"sglang.srt.models.{_MODULES[c['architectures'][0]]}",
            c["architectures"][0],
            c,
        )
        for c in _CONFIGS
    ]
    facts = release_facts(release)
    wrong = []
    for target, answers in zip(targets, real_capture(release, targets, _IDS), strict=True):
        for ids, real in zip(_IDS, answers, strict=True):
            plan = capture_plan(target.config, _drafter(ids), facts)
            if real.exception:
                refusal = plan.refusal
                said = refusal and (refusal.exception, refusal.message)
                if said != (real.exception, real.message):
                    wrong.append(f"{target.name} {ids}: raises {real.message!r}, plan {refusal}")
                continue
            points = tuple(sorted(real.points))
            planned = plan.phase("extend").points
            if plan.refusal or (plan.chain, planned) != (real.chain, points):
                wrong.append(f"{target.name} {ids}: {real.chain} {points}, plan {plan.chain} {planned}")
            assert all(0 <= point < LAYERS for point in points)
    assert not wrong, "\n".join(wrong)
