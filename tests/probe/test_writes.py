"""What a loader wrote, for loaders of every kind: SGLang's way, held-back tensors, threads, lists, and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from eagle3lab.serving.probe.writes import LoadResult, LoadWatch

Weights = Iterable[tuple[str, torch.Tensor]]


class Head(nn.Module):
    """Parameters as a head has them, with norms of ones and one of NaNs, as memory may hold."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.full((96, 32), float("nan")).to(dtype))
        self.norm = nn.Parameter(torch.ones(32, dtype=dtype))
        self.fc = nn.Parameter(torch.zeros(32, 96, dtype=dtype))
        self.scale = nn.Parameter(torch.tensor(-1.0))
        self.hot_token_id: torch.Tensor | None = None

    def write(self, name: str, tensor: torch.Tensor) -> None:
        if "d2t" in name:
            self.hot_token_id = tensor + torch.arange(len(tensor))
        elif name in ("q", "k", "v"):
            start = {"q": 0, "k": 64, "v": 80}[name]
            self.qkv.data.narrow(0, start, len(tensor)).copy_(tensor)
        elif name in dict(self.named_parameters()):
            getattr(self, name).data.copy_(tensor)


def checkpoint(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(dtype)

    return {
        "q": rows(64, 32), "k": rows(16, 32), "v": rows(16, 32), "norm": torch.ones(32, dtype=dtype),
        "fc": rows(32, 96), "d2t": torch.arange(8), "t2d": torch.ones(8, dtype=torch.bool),
    }  # fmt: skip


def watched(model: Head, weights: Weights, loader: Callable[[Head, Weights], None]) -> LoadResult:
    watch = LoadWatch(model)
    loader(model, watch.names(weights))
    return watch.finish()


def one_by_one(model: Head, weights: Weights) -> None:
    for name, tensor in weights:
        model.write(name, tensor)


def test_a_healthy_load_is_traced_name_by_name_and_leaves_the_values_alone() -> None:
    model, plain = Head(), Head()
    result = watched(model, checkpoint().items(), one_by_one)
    one_by_one(plain, checkpoint().items())
    assert result == LoadResult(
        offered=7,
        placed={
            "q": ["qkv"], "k": ["qkv"], "v": ["qkv"], "norm": ["norm"], "fc": ["fc"], "d2t": ["hot_token_id"],
        },
        dropped=["t2d"],
        never_written=[],
        partly_written=[],
        untraced=[],
    )  # fmt: skip
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_norm_that_is_one_before_and_after_counts_as_written(dtype: torch.dtype) -> None:
    model = Head(dtype)
    result = watched(model, {"norm": torch.ones(32).to(dtype)}.items(), one_by_one)
    assert result.placed == {"norm": ["norm"]}
    assert set(result.never_written) == {"qkv", "fc"}, "NaNs and zeros that nothing wrote"


def test_what_is_never_written_gets_its_values_back_to_the_last_bit() -> None:
    model, plain = Head(), Head()
    result = watched(model, {"midlayer.nothing": torch.ones(3)}.items(), one_by_one)
    assert set(result.never_written) == {"qkv", "norm", "fc"}
    assert result.dropped == ["midlayer.nothing"] and result.untraced == []
    for name, parameter in plain.named_parameters():
        ours = dict(model.named_parameters())[name]
        if parameter.dim():
            assert torch.equal(parameter.data.view(torch.int16), ours.data.view(torch.int16))


def test_a_projection_that_is_missing_shows_as_part_of_its_parameter() -> None:
    weights = checkpoint()
    del weights["k"]
    result = watched(Head(), weights.items(), one_by_one)
    assert result.partly_written == ["qkv"] and result.never_written == []


def test_a_tensor_that_is_held_back_is_traced_to_where_it_goes_in_the_end() -> None:
    """As MLA's q_a_proj waits for kv_a_proj_with_mqa; here with another name in between."""

    def fusing(model: Head, weights: Weights) -> None:
        held: dict[str, torch.Tensor] = {}
        for name, tensor in weights:
            if name in ("q", "k", "v"):
                held[name] = tensor
                if len(held) == 3:
                    model.qkv.data.copy_(torch.cat([held.pop("q"), held.pop("k"), held.pop("v")]))
                continue
            model.write(name, tensor)

    source = checkpoint()
    order = ["q", "norm", "k", "t2d", "v", "fc"]
    result = watched(Head(), ((name, source[name]) for name in order), fusing)
    assert [result.placed.get(name) for name in ("q", "k", "v")] == [["qkv"]] * 3
    assert result.dropped == ["t2d"] and result.never_written == []


def test_writing_left_to_threads_is_seen() -> None:
    def threaded(model: Head, weights: Weights) -> None:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(model.write, name, tensor) for name, tensor in weights]
            for future in futures:
                future.result()

    result = watched(Head(), checkpoint().items(), threaded)
    assert result.never_written == [] and result.partly_written == []
    assert not {"q", "k", "v", "norm", "fc"} & set(result.dropped), (
        "no name is called dropped that was written"
    )


def test_a_loader_that_takes_all_names_first_leaves_them_untraced_not_dropped() -> None:
    def listing(model: Head, weights: Weights) -> None:
        one_by_one(model, list(weights))

    result = watched(Head(), checkpoint().items(), listing)
    assert result.never_written == [] and result.dropped == [] and result.placed == {}
    assert set(result.untraced) == set(checkpoint())


def test_parameters_given_other_storage_count_as_written() -> None:
    def replacing(model: Head, weights: Weights) -> None:
        for name, tensor in weights:
            if name == "fc":
                model.fc.data = tensor.t().contiguous().reshape(-1)
            else:
                model.write(name, tensor)

    result = watched(Head(), checkpoint().items(), replacing)
    assert "fc" not in result.never_written and result.placed["fc"] == ["fc"]


def test_a_loader_that_fails_leaves_the_values_as_they_were() -> None:
    model, plain = Head(), Head()
    watch = LoadWatch(model)
    with pytest.raises(AssertionError):
        for _ in watch.names(checkpoint().items()):
            raise AssertionError("wrong shape")
    watch.finish()
    assert torch.equal(model.norm, plain.norm) and torch.equal(model.fc, plain.fc)


def test_d2t_and_t2d_are_kept_for_the_map() -> None:
    watch = LoadWatch(Head())
    one_by_one(Head(), watch.names({"model.d2t": torch.arange(4), "t2d": torch.ones(4)}.items()))
    assert set(watch.maps) == {"d2t", "t2d"} and watch.maps["d2t"].tolist() == [0, 1, 2, 3]


def test_tensors_of_other_types_and_strange_names_pass_through_untouched() -> None:
    strange = [("a\udcff\x1b[31m", "not a tensor"), ("b", nn.Parameter(torch.ones(2)))]
    watch = LoadWatch(Head())
    seen = list(watch.names(strange))  # type: ignore[arg-type]
    assert [value for _, value in seen] == [value for _, value in strange]
    assert watch.finish().dropped == ["a\\udcff\x1b[31m", "b"]
