"""The ground truth's other side for vLLM: builds the release's own drafter and calls its own `load_weights`.

Started as a script, never imported by eagle3lab, by the interpreter of an environment that has vLLM. It speaks the
language of `worker.py`, beside which it lies and whose probes it uses; one rank is all there is. A request brings
the drafter's config.json and that of a target: vLLM reads both itself, and everything that it refuses on the way to
the drafter's class counts as not being built.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import worker

sys.path.pop(0)  # the folder of this script: nothing else in it is meant for the release's imports
# What an integer parameter holds until something is loaded into it: probes are small and positive.
UNWRITTEN = -(2**40)


class Drafter(worker.Drafter):  # type: ignore[misc]
    """The release's drafter, every parameter erased until something is loaded into it."""

    def __init__(self, target: dict[str, Any], config: dict[str, Any]) -> None:
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader.utils import initialize_model

        with tempfile.TemporaryDirectory(prefix="eagle3lab-config-") as folder:
            for name, content in (("target", target), ("drafter", config)):
                Path(folder, name).mkdir()
                Path(folder, name, "config.json").write_text(json.dumps(content), encoding="utf-8")
            self.config = EngineArgs(
                model=str(Path(folder, "target")),
                speculative_config={
                    "model": str(Path(folder, "drafter")),
                    "method": "eagle3",
                    "num_speculative_tokens": 3,
                },
                enforce_eager=True,
                skip_tokenizer_init=True,
                dtype="bfloat16",
                max_model_len=64,
            ).create_engine_config()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with set_current_vllm_config(self.config):
                initialise_layout()
                drafter_config = self.config.speculative_config.draft_model_config
                self.model = initialize_model(vllm_config=self.config, model_config=drafter_config)
        finally:
            torch.set_default_dtype(torch.float32)
        self.parameters = {name: parameter.data for name, parameter in self.model.named_parameters()}
        self.erase(self.parameters)

    def erase(self, names: Any) -> None:
        """Forget what was loaded."""
        for name in names:
            data = self.parameters[name]
            data.fill_(float("nan") if data.is_floating_point() else UNWRITTEN)

    def written(self) -> dict[str, Any]:
        """Parameter name to a mask of the elements that were written, where there are any."""
        masks = {
            name: ~data.isnan() if data.is_floating_point() else data != UNWRITTEN
            for name, data in self.parameters.items()
        }
        return {name: mask for name, mask in masks.items() if bool(mask.any())}


def initialise_layout() -> None:
    """Become the only rank there is, once."""
    from vllm.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    meeting = Path(tempfile.mkdtemp(prefix="eagle3lab-ranks-"), "file")
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=f"file://{meeting}", local_rank=0, backend="gloo"
    )
    parallel_state.initialize_model_parallel(1)


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request: each tensor alone, then all of them in order, up to the one that raises.

    With `alone` in the request every tensor is offered alone, whatever the others do, and none together.
    """
    from vllm.config import set_current_vllm_config

    try:
        drafter = Drafter(request["target"], request["config"])
    except Exception as error:
        return {"construction_error": {"type": type(error).__name__, "message": str(error)}}
    offers: list[dict[str, Any]] = []
    with set_current_vllm_config(drafter.config):
        for index in range(len(request["tensors"])):
            offers.append(drafter.offer([worker.named_probe(request, index)]))
            if offers[-1]["outcome"] == "rejected" and not request.get("alone"):
                break
        if request.get("alone"):
            return {"tensors": offers}
        for attribute in ("lm_head", "embed_tokens"):
            setattr(drafter.model, f"has_own_{attribute}", False)
        parameters = drafter.load_all(request, offers)
    return {
        "class": type(drafter.model).__name__,
        "tensors": offers,
        "parameters": parameters,
        "own": {name: getattr(drafter.model, f"has_own_{name}") for name in ("lm_head", "embed_tokens")},
    }


def main() -> None:
    """Import the release, then answer one request a line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    requests, replies = worker.requests_and_replies()
    import torch

    torch.set_num_threads(1)
    import vllm

    worker.send(replies, {"ready": vllm.__version__.partition("+")[0], "file": vllm.__file__})
    worker.answer_each(requests, replies, load)


if __name__ == "__main__":
    main()
