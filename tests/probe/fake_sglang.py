"""An SGLang of a few lines with the real one's names: enough for the probe to live through a server's life."""

from __future__ import annotations

import sys
from enum import Enum, auto
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

H = 8
NAMES = {
    "sglang": (),
    "sglang.version": (),
    "sglang.srt": (),
    "sglang.srt.model_executor.model_runner": ("ModelRunner",),
    "sglang.srt.model_loader.loader": ("_initialize_model",),
    "sglang.srt.managers.scheduler": ("Scheduler",),
}


class Mode(Enum):
    EXTEND = auto()
    DRAFT_EXTEND_V2 = auto()
    DECODE = auto()
    IDLE = auto()


class TargetInner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, H))
        self.layers_to_capture: list[int] = []

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.layers_to_capture = [2, 6, 9] if layer_ids is None else [layer + 1 for layer in layer_ids]


class Target(nn.Module):
    """A wrapper that hands the call on, as the multimodal Kimi does."""

    def __init__(self) -> None:
        super().__init__()
        self.language_model = TargetInner()
        self.config = SimpleNamespace(architectures=["Target"], text_config=SimpleNamespace(hidden_size=H))

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.language_model.set_eagle3_layers_to_capture(layer_ids)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.embed_tokens = nn.Embedding(16, H)
        self.midlayer = nn.Linear(H, H, bias=False)
        self.layers = [self.midlayer]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, input_embeds: Any = None
    ) -> torch.Tensor:
        embeds = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        hidden = forward_batch.spec_info.hidden_states
        if hidden.shape[-1] != embeds.shape[-1]:
            hidden = self.fc(hidden)
        out: torch.Tensor = self.midlayer(hidden + embeds)
        return out


class FakeEagle3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Body()
        self.lm_head = nn.Linear(H, 16, bias=False)
        self.hot_token_id: torch.Tensor | None = None
        self.config = SimpleNamespace(
            architectures=["FakeEagle3"], hidden_size=H, vocab_size=32, draft_vocab_size=16,
            eagle_config={"use_aux_hidden_state": True},
        )  # fmt: skip

    def load_weights(self, weights: Any) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if "d2t" in name:
                self.hot_token_id = tensor + torch.arange(len(tensor))
            for place in (name, f"model.{name}"):
                if place in parameters:
                    parameters[place].data.copy_(tensor)

    def set_embed(self, embed: nn.Parameter) -> None:
        del self.model.embed_tokens.weight
        self.model.embed_tokens.weight = embed

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any) -> Any:
        out = self.model(input_ids, positions, forward_batch)
        return SimpleNamespace(next_token_logits=self.lm_head(out), hidden_states=out)


def weights(prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        "fc.weight": torch.randn(H, 3 * H), f"{prefix}midlayer.weight": torch.randn(H, H),
        "lm_head.weight": torch.randn(16, H), "d2t": torch.arange(16), "t2d": torch.arange(32) % 2 == 0,
    }  # fmt: skip


class ModelRunner:
    """Knows no dp_rank, as that of 0.5.9."""

    def __init__(
        self, draft: bool, server_args: Any = None, checkpoint: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.is_draft_worker, self.tp_rank, self.tp_size, self.dp_size = draft, 0, 1, 1
        self.server_args, self.checkpoint = server_args, checkpoint

    def load_model(self) -> None:
        loader = sys.modules["sglang.srt.model_loader.loader"]
        self.model = loader._initialize_model(
            SimpleNamespace(is_draft_model=self.is_draft_worker, vocab_size=32)
        )
        if self.checkpoint is not None:
            self.model.load_weights(self.checkpoint.items())


def _initialize_model(model_config: Any) -> nn.Module:
    return FakeEagle3() if model_config.is_draft_model else Target()


def a_batch(mode: Mode, rows: int, width: int, tokens: int | None = None) -> Any:
    """A batch of one request; with `tokens`, the rows after them pad a graph's buffer."""
    hidden = torch.ones(rows, width)
    if tokens is not None:
        hidden[tokens:] = 1000.0
    return SimpleNamespace(
        forward_mode=mode,
        spec_info=SimpleNamespace(hidden_states=hidden),
        extend_seq_lens_cpu=None if tokens is None else [tokens],
    )


class PrefillGraph:
    """0.5.23's breakable prefill graph: what its runner calls in Python, and nothing that it does not.

    `model_executor/runner/prefill_cuda_graph_runner.py`: `_run_forward` captures `layer_model.forward` alone, past the
    outer model; `_execute_body_capture` puts the replay in its place and runs the outer forward.
    """

    def __init__(self, model: Any, bucket: int) -> None:
        self.model, self.layer_model, self.bucket = model, model.model, bucket

    def capture(self) -> None:
        rows = torch.arange(self.bucket)
        batch = a_batch(Mode.EXTEND, self.bucket, 3 * H)
        self.output = self.layer_model.forward(rows % 16, rows, batch, input_embeds=None)

    def replay(self, tokens: int) -> Any:
        def replay_layer_forward(*args: Any, **layer_kwargs: Any) -> torch.Tensor:
            return self.output

        static_forward_batch = a_batch(Mode.EXTEND, self.bucket, 3 * H, tokens)
        rows = torch.arange(self.bucket)
        original_layer_forward = self.layer_model.forward
        self.layer_model.forward = replay_layer_forward
        try:
            return self.model.forward(rows % 16, rows, static_forward_batch)
        finally:
            self.layer_model.forward = original_layer_forward


class DraftGraph:
    """The graphs of draft and draft-extend passes, of 0.5.9 and 0.5.23: the whole forward, captured once.

    0.5.9 `speculative/eagle_draft_extend_cuda_graph_runner.py`: `run_once` calls `model_runner.model.forward`; a replay
    runs nothing in Python.
    """

    def __init__(self, model: Any, mode: Mode, rows: int, width: int) -> None:
        self.model, self.call = model, (mode, rows, width)

    def capture(self) -> None:
        _, rows, _ = self.call
        for _ in range(2):  # run_once twice before it is captured
            self.output = self.model.forward(torch.arange(rows), torch.arange(rows), a_batch(*self.call))

    def replay(self) -> Any:
        return self.output


class Request:
    def __init__(self, rid: str) -> None:
        self.rid, self.spec_verify_ct, self.spec_num_correct_drafts, self.over = rid, 0, 0, False

    def finished(self) -> bool:
        return self.over


class Scheduler:
    """Loads both models, as the real one does while it is constructed."""

    def __init__(
        self,
        checkpoint: dict[str, torch.Tensor],
        algorithm: str = "EAGLE3",
        dp: tuple[int | None, int] = (None, 1),
        layers: tuple[int, ...] = (1, 5, 8),
    ) -> None:
        self.dp_rank, self.dp_size = dp
        self.server_args = SimpleNamespace(
            speculative_algorithm=algorithm, speculative_num_steps=3, speculative_eagle_topk=1,
            speculative_num_draft_tokens=4, model_path="/t", speculative_draft_model_path="/d",
            dp_size=dp[1],
        )  # fmt: skip
        self.model_config = SimpleNamespace(vocab_size=32)
        self.target, self.draft = (
            ModelRunner(False, self.server_args),
            ModelRunner(True, self.server_args, checkpoint),
        )
        self.target.load_model()
        self.draft.load_model()
        self.drafter: Any = self.draft.model
        self.drafter.set_embed(nn.Parameter(torch.randn(16, H)))
        if algorithm == "EAGLE3":
            self.target.model.set_eagle3_layers_to_capture(list(layers))
        self.warm_up()

    def warm_up(self) -> None:
        """Passes over dummies, as for capturing graphs."""
        self.run(Mode.DECODE, 2, H)

    def run(self, mode: Mode, rows: int, width: int) -> Any:
        return self.drafter.forward(torch.arange(rows) % 16, torch.arange(rows), a_batch(mode, rows, width))

    def process_batch_result(self, batch: Any, result: Any) -> str:
        for request, accepted in zip(batch.reqs, result, strict=True):
            request.spec_verify_ct += 1
            request.spec_num_correct_drafts += accepted
        return "processed"

    def verify(self, requests: list[Request], accepted: list[int], last: bool = False) -> None:
        for request in requests:
            request.over = last
        assert self.process_batch_result(SimpleNamespace(reqs=requests), accepted) == "processed"


def modules(without: tuple[str, ...] = ()) -> dict[str, ModuleType]:
    """The modules by name, lacking some names, with classes of their own that may be wrapped."""
    made = {}
    for name, attributes in NAMES.items():
        module = made[name] = ModuleType(name)
        for attribute in attributes:
            if attribute in without:
                continue
            value = globals()[attribute]
            if isinstance(value, type):
                fields = {
                    key: field for key, field in vars(value).items() if f"{attribute}.{key}" not in without
                }
                fields.pop("__dict__", None), fields.pop("__weakref__", None)
                value = type(attribute, value.__bases__, fields)
            setattr(module, attribute, value)
    made["sglang.version"].__version__ = "9.9.9"  # type: ignore[attr-defined]
    # The scheduler's own reference to the runner is the module's.
    return made
