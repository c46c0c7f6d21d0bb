"""Trained or untouched: calibrated on the cases' templates, on fresh initialisations, and on real training."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.training_state import Judgement, judge_training
from tests.support.make_case import materialise, safetensors_bytes
from tests.support.project import ROOT

torch = pytest.importorskip("torch")


def judge(
    folder: Path, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16
) -> dict[str, Judgement]:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.detach().to(dtype).contiguous() for name, value in tensors.items()},
        folder / "model.safetensors",
    )
    return judge_training(open_checkpoint(folder))


@pytest.mark.parametrize("state", ["trained", "init"])
def test_the_templates_of_the_cases(tmp_path: Path, state: str) -> None:
    wanted = {"trained": "trained", "init": "untouched"}[state]
    wrong = {"trained": "untouched", "init": "trained"}[state]
    counts: Counter[str] = Counter()
    for name in (
        "ok-specforge-llama-0.5.9",
        "ok-modelopt-unsorted",
        "ok-kimi-mla-verbatim",
        "names-automodel-prefix",
        "vocab-zero-first-n",
        "kind-two-layers-old-engine",
    ):
        case: dict[str, Any] = json.loads((ROOT / "tests" / "cases" / f"{name}.json").read_text())
        case["drafter"]["template"] |= {"state": state, "embed": False, "lm_head": True}
        materialise(case, tmp_path)
        for tensor, judged in judge_training(open_checkpoint(tmp_path / "drafter")).items():
            if judged.state == "not-weights":
                assert tensor in ("d2t", "t2d")
                continue
            assert judged.state in (wanted, "undecided"), (name, tensor, judged)
            counts[judged.state] += 1
    assert counts[wrong] == 0
    assert counts[wanted] / counts.total() > 0.8, counts


def fresh(name: str, shape: tuple[int, int]) -> torch.Tensor:
    torch.manual_seed(zlib.crc32(f"{name} {shape}".encode()))
    values = torch.empty(shape)
    match name:
        case "normal 0.02":
            torch.nn.init.normal_(values, 0, 0.02)
        case "truncated normal":
            torch.nn.init.trunc_normal_(values, 0, 0.02, -0.04, 0.04)
        case "kaiming uniform":
            torch.nn.init.kaiming_uniform_(values, a=5**0.5)
        case "xavier uniform":
            torch.nn.init.xavier_uniform_(values)
        case "orthogonal":
            torch.nn.init.orthogonal_(values)
        case "embedding with a padding row":
            values = torch.nn.Embedding(*shape, padding_idx=3).weight.detach()
    return values


FRESH = [
    "normal 0.02",
    "truncated normal",
    "kaiming uniform",
    "xavier uniform",
    "orthogonal",
    "embedding with a padding row",
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FRESH)
def test_a_fresh_matrix_is_untouched(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    shapes = [(64, 64), (96, 1024), (1024, 96), (512, 1536), (2000, 256)]
    judged = judge(tmp_path, {f"{shape}": fresh(name, shape) for shape in shapes}, dtype)
    for shape, verdict in judged.items():
        assert verdict.state == "untouched", (shape, verdict)
        assert verdict.confidence >= 0.8


@pytest.mark.slow
def test_a_fresh_transformers_model_is_untouched(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=384,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        vocab_size=1000,
    )
    state = transformers.LlamaForCausalLM(config).state_dict()
    judged = judge(tmp_path, state)
    assert {name: verdict for name, verdict in judged.items() if verdict.state != "untouched"} == {}


def test_gradient_descent_is_seen(tmp_path: Path) -> None:
    """A hundred steps on a task without sharp structure: seen in every matrix and norm that took part."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.LayerNorm(256),
        torch.nn.Linear(256, 64, bias=False),
    )
    weights = ("0.weight", "2.weight", "3.weight")
    before = judge(tmp_path / "before", {name: model.state_dict()[name].clone() for name in weights})
    rotation = torch.linalg.qr(torch.randn(64, 64))[0]
    scales = torch.logspace(0, -2, 64)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(100):
        x = torch.randn(64, 64) * scales
        loss = (model(x) - torch.tanh(3 * x @ rotation)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = judge(tmp_path / "after", {name: model.state_dict()[name] for name in weights})
    assert {verdict.state for verdict in before.values()} == {"untouched"}
    assert {verdict.state for verdict in after.values()} == {"trained"}


def test_odd_tensors(tmp_path: Path) -> None:
    noise = torch.randn(100, 100, generator=torch.Generator().manual_seed(0)) * 0.02
    one_nan, one_inf, garbage = noise.clone(), noise.clone(), noise.clone()
    one_nan[3, 4], one_inf[5, 6], garbage[7, 8] = float("nan"), float("inf"), 1e30
    judged = judge(
        tmp_path,
        {
            "norm.weight": torch.ones(64),
            "moved_norm.weight": 1 + 0.05 * torch.randn(64, generator=torch.Generator().manual_seed(1)),
            "one_nan": one_nan,
            "one_inf": one_inf,
            "garbage": garbage,
            "all_nan": torch.full((8, 8), float("nan")),
            "zeros": torch.zeros(40, 40),
            "bias": torch.zeros(40),
            "constant": torch.full((40, 40), 0.0021),
            "ones_matrix": torch.ones(40, 40),
            "scale": torch.tensor(3.0),
            "empty": torch.zeros(0, 4),
            "small": noise[:8, :8],
        },
    )
    states = {name: verdict.state for name, verdict in judged.items()}
    assert states == {
        "norm.weight": "untouched",
        "moved_norm.weight": "trained",
        "one_nan": "broken",
        "one_inf": "broken",
        "garbage": "broken",
        "all_nan": "broken",
        "zeros": "untouched",
        "bias": "untouched",
        "constant": "constant",
        "ones_matrix": "constant",
        "scale": "undecided",
        "empty": "undecided",
        "small": "undecided",
    }
    assert "1 of 10000 values are NaN" in judged["one_nan"].reason
    assert all(verdict.reason and 0 <= verdict.confidence <= 1 for verdict in judged.values())


def test_a_lightly_trained_matrix_is_not_called_untouched(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.02, (400, 600))
    direction = np.outer(rng.normal(size=400), rng.normal(size=600))
    shares = {}
    for share in (0.0, 0.01, 0.05):  # share of the energy in one learned direction
        values = noise + 0.02 * np.sqrt(share) * direction
        (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"w.weight": (values, "BF16")}))
        shares[share] = judge_training(open_checkpoint(tmp_path))["w.weight"].state
    assert shares == {0.0: "untouched", 0.01: "trained", 0.05: "trained"}


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_the_specimen_is_trained(part: str) -> None:
    judged = judge_training(open_checkpoint(ROOT / "specimen" / part))
    weights = {name: verdict for name, verdict in judged.items() if verdict.state != "not-weights"}
    assert [name for name, verdict in weights.items() if verdict.state in ("broken", "constant")] == []
    trained = [name for name, verdict in weights.items() if verdict.state == "trained"]
    assert len(trained) / len(weights) > 0.9, {n: v for n, v in weights.items() if v.state != "trained"}
