"""The whole course in miniature, from corpus to cards; and taking it up again where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("speculators")

from safetensors.torch import load_file  # noqa: E402

from lab.reference import load_as_trained, load_reference_target  # noqa: E402
from lab.reference.forward import Place  # noqa: E402
from lab.specimen import build, head, target  # noqa: E402
from lab.specimen.recipe import MINIATURE  # noqa: E402

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, list[str]]:
    folder = tmp_path_factory.mktemp("miniature")
    stages: list[str] = []
    training = build.build(
        folder / "specimen", folder / "work", MINIATURE, lambda stage, *rest: stages.append(stage)
    )
    return folder, training, stages


def test_stages_are_reported_in_order(made: tuple[Path, dict, list[str]]) -> None:
    stages = list(dict.fromkeys(made[2]))
    assert stages[:2] == ["permutation target", "target"]
    assert stages[-2:] == ["drafter", "acceptance"]


def test_loss_falls(made: tuple[Path, dict, list[str]]) -> None:
    curve = made[1]["target"]["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.5
    curve = made[1]["drafter"]["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert [each["step"] for each in curve[-1]["validation"]] == [1, 2, 3]


def test_head_has_speculators_names_and_shapes(made: tuple[Path, dict, list[str]]) -> None:
    tensors = load_file(made[0] / "specimen" / "drafter" / "model.safetensors")
    shape, d = MINIATURE.shape, MINIATURE.draft_vocab_size
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (64, 2 * shape.hidden_size)
    assert tensors["fc.weight"].shape == (shape.hidden_size, 3 * shape.hidden_size)
    assert tensors["lm_head.weight"].shape == (d, shape.hidden_size)
    assert tensors["d2t"].dtype == torch.int64
    assert int(tensors["t2d"].sum()) == d
    own = load_file(made[0] / "specimen" / "target" / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], own["lm_head.weight"][tensors["t2d"]])


@pytest.fixture
def read_back(made: tuple[Path, dict, list[str]], tmp_path: Path):
    """The saved head, loaded by speculators itself."""
    from speculators.models.eagle3 import Eagle3DraftModel

    source = made[0] / "specimen" / "drafter"
    config = json.loads((source / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == head.VERIFIER_NAME
    config["speculators_config"]["verifier"]["name_or_path"] = str(made[0] / "specimen" / "target")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    return Eagle3DraftModel.from_pretrained(tmp_path, dtype=torch.float32).eval()


def test_speculators_reads_it_back(made: tuple[Path, dict, list[str]], read_back) -> None:
    saved = load_file(made[0] / "specimen" / "drafter" / "model.safetensors")
    state = read_back.state_dict()
    assert all(torch.equal(state[name].to(tensor.dtype), tensor) for name, tensor in saved.items())


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_our_forward_is_speculators_forward(made: tuple[Path, dict, list[str]], read_back) -> None:
    """First draft step over a whole sequence: the same logits from the reference and the real class."""
    captured: list[torch.Tensor] = []
    read_back.lm_head.register_forward_hook(lambda module, inputs, output: captured.append(output[0]))
    folder = made[0] / "specimen"
    ours = load_as_trained(folder / "drafter", load_reference_target(folder / "target"))
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(MINIATURE.shape.vocab_size, (23,), generator=generator)
    states = torch.randn(23, 3 * MINIATURE.shape.hidden_size, generator=generator)
    with torch.no_grad():
        read_back(states[None], tokens[None], torch.zeros(1, 23, dtype=torch.int64), ttt_steps=1)
        place = Place.after(torch.zeros(1, dtype=torch.int64), 23)
        logits = ours.forward(tokens[None], states[None], place, ours.caches(1, 23), own=False)["logits"]
    assert logits.std() > 0.01
    torch.testing.assert_close(logits[0], captured[0], atol=1e-4, rtol=1e-4)


def test_acceptance_is_measured(made: tuple[Path, dict, list[str]]) -> None:
    both = made[1]["acceptance"]["all"]
    assert 1 <= both["accept_length"] <= 4
    assert both["prompts"] == 2
    written = json.loads((made[0] / "specimen" / "training.json").read_text())
    assert written["acceptance"]["all"] == both


def test_cards_stand_in_every_folder(made: tuple[Path, dict, list[str]]) -> None:
    for name in (".", "target", "drafter", "permutation"):
        text = (made[0] / "specimen" / name / "README.md").read_text()
        assert "{" not in text
        assert str(made[0]) not in text


def test_a_second_run_trains_nothing(made: tuple[Path, dict, list[str]]) -> None:
    folder = made[0]
    before = {path: path.read_bytes() for path in (folder / "specimen").rglob("*.safetensors")}
    stages: list[str] = []
    build.build(folder / "specimen", folder / "work", MINIATURE, lambda stage, *rest: stages.append(stage))
    assert set(stages) == {"permutation target", "acceptance"}
    assert {path: path.read_bytes() for path in (folder / "specimen").rglob("*.safetensors")} == before


def test_interrupted_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    rows = [[1, 3, *range(6, 6 + length), 2] for length in range(3, 30)]
    plan = replace(MINIATURE.target, steps=12, checkpoint_every=4, report_every=4)

    class Interrupted(Exception):
        pass

    def stop(step: int, record: dict) -> None:
        if step == 8:
            raise Interrupted

    def train(checkpoint: str, report):
        return target.train_target(MINIATURE.shape, plan, rows, rows[:4], tmp_path / checkpoint, report)

    whole, curve = train("whole.pt", lambda step, record: None)
    with pytest.raises(Interrupted):
        train("broken.pt", stop)
    resumed, taken_up = train("broken.pt", lambda step, record: None)
    assert all(
        torch.allclose(one, other, atol=1e-6)
        for one, other in zip(whole.parameters(), resumed.parameters(), strict=True)
    )
    assert [record["step"] for record in taken_up] == [record["step"] for record in curve]


def test_a_state_of_other_settings_is_not_taken_up(tmp_path: Path) -> None:
    plan = target.TrainPlan(steps=3, tokens_per_step=4)

    def steps_of(settings: int) -> int:
        model, batches = torch.nn.Linear(2, 1), []

        def loss_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            batches.append(ids)
            return model(ids.float()).square().mean()

        made_with = {"settings": settings}
        target.train(
            model, plan, [[1, 2], [3, 4]], loss_of, dict, 1, tmp_path / "s.pt", made_with, lambda *_: None
        )
        return len(batches)

    assert [steps_of(settings) for settings in (1, 1, 2)] == [3, 0, 3]
