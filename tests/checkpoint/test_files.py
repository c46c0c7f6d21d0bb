"""Which files are read, which are passed over and why, and which folders are refused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.store import safe_file
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import CONFIG, entry, raw_safetensors, small_bin, small_safetensors, write


def shard(name: str, value: int = 0) -> bytes:
    return raw_safetensors({name: entry("U8", [1], 0, 1)}, bytes([value]))


def index(**weight_map: str) -> dict[str, Any]:
    return {"metadata": {}, "weight_map": weight_map}


def reasons(folder: Path) -> dict[str, str]:
    return {file.name: file.reason for file in open_checkpoint(folder).files.ignored}


def test_safetensors_shadow_torch_files(tmp_path: Path) -> None:
    write(tmp_path, model__safetensors=shard("a"), pytorch_model__bin=small_bin(), more__pt=small_bin())
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.files.read == ("model.safetensors",)
    assert checkpoint.files.format == "safetensors"
    assert list(checkpoint.tensors) == ["a"]
    assert set(reasons(tmp_path)) == {"pytorch_model.bin", "more.pt"}
    assert all("shadowed" in reason for reason in reasons(tmp_path).values())


def test_bin_comes_before_pt_and_a_trainers_state_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path, pytorch_model__bin=small_bin(), training_args__bin=b"x", optimizer__pt=b"x", model__pt=b"x"
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.files.read == ("pytorch_model.bin",)
    assert checkpoint.files.format == "torch"
    assert set(reasons(tmp_path)) == {"training_args.bin", "optimizer.pt", "model.pt"}


def test_a_folder_with_only_a_trainers_state_is_refused_as_the_engine_refuses_it(tmp_path: Path) -> None:
    write(tmp_path, training_args__bin=b"x", model__pt=small_bin())
    with pytest.raises(InputError, match="none that an engine reads"):
        open_checkpoint(tmp_path)


def test_shards_are_read_in_name_order_and_unindexed_ones_passed_over(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{"m-2__safetensors": shard("a"), "m-1__safetensors": shard("z"), "m-3__safetensors": shard("b")},
    )
    write(tmp_path, model__safetensors__index__json=index(a="m-2.safetensors", z="m-1.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.files.read == ("m-1.safetensors", "m-2.safetensors")
    assert list(checkpoint.tensors) == ["z", "a"]
    assert reasons(tmp_path) == {"m-3.safetensors": "not in model.safetensors.index.json"}


def test_without_an_index_every_file_is_read_and_the_last_of_a_name_stays(tmp_path: Path) -> None:
    write(tmp_path, **{"m-1__safetensors": shard("a", 1), "m-2__safetensors": shard("a", 2)})
    checkpoint = open_checkpoint(tmp_path)
    assert [tensor.file for tensor in checkpoint.contents.offered] == ["m-1.safetensors", "m-2.safetensors"]
    assert int(checkpoint.read("a")[0]) == 2


def test_a_consolidated_copy_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, consolidated__safetensors=shard("b"), model__safetensors=shard("a"))
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_a_target_may_have_only_a_config(tmp_path: Path) -> None:
    write(tmp_path, config__json={"model_type": "x"})
    checkpoint = open_checkpoint(tmp_path)
    assert (dict(checkpoint.tensors), checkpoint.files.format) == ({}, None)
    assert checkpoint.raw_config["model_type"] == "x"
    with pytest.raises(InputError, match="does not state hidden_size"):
        _ = checkpoint.config


def test_weights_without_a_config(tmp_path: Path) -> None:
    write(tmp_path, model__safetensors=small_safetensors())
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.has_config
    with pytest.raises(InputError, match=r"has no config\.json"):
        _ = checkpoint.config


BAD_INDEXES: dict[str, tuple[Any, str]] = {
    "missing shard": (index(a="m-9.safetensors"), "names the shard 'm-9.safetensors' for 1 tensors"),
    "parent folder": (index(a="../m.safetensors"), "not a file directly in the folder"),
    "absolute path": (index(a="/etc/passwd"), "not a file directly in the folder"),
    "subfolder": (index(a="sub/m.safetensors"), "not a file directly in the folder"),
    "backslashes": (index(a="..\\m.safetensors"), "not a file directly in the folder"),
    "the folder itself": (index(a="."), "not a file directly in the folder"),
    "NUL": (index(a="m\0.safetensors"), "not a file directly in the folder"),
    "very long name": (index(a="m" * 5000), "but the folder does not hold it"),
    "number for a file": (index(a=3), "is an integer, not a name"),  # type: ignore[arg-type]
    "empty name": (index(a=""), "is empty, not a name"),
    "no weight_map": ({"metadata": {}}, "has no weight_map"),
    "weight_map is a list": ({"weight_map": []}, "weight_map is an array"),
    "weight_map is empty": ({"weight_map": {}}, "names no tensor"),
    "not JSON": (b'{"weight_map":\n{"a" "b"}}', "index.json:2: the file is not JSON"),
    "a list": (b"[]", "an array instead of an object"),
    "empty file": (b"", "is empty"),
    "not UTF-8": (b'{\n"\xff": 1}', "index.json:2: is not UTF-8"),
    "nested too deeply": (b'{"a":' * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD_INDEXES)
@pytest.mark.parametrize("with_weights", [True, False])
def test_a_bad_index_is_one_clear_error(tmp_path: Path, name: str, with_weights: bool) -> None:
    content, message = BAD_INDEXES[name]
    if with_weights:
        write(tmp_path, model__safetensors=shard("a"))
    write(tmp_path, model__safetensors__index__json=content)
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert "model.safetensors.index.json" in str(caught.value)


def test_the_line_of_a_bad_entry_is_named(tmp_path: Path) -> None:
    write(
        tmp_path, model__safetensors=shard("a"), model__safetensors__index__json=index(a="m.safetensors", b=3)
    )  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert (caught.value.line, caught.value.tensor) == (5, "b")


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "missing": "does not exist",
        "file": "is a file, not a folder",
        "file/below": "cannot be opened",
        "loop": "cannot be opened",
        "empty": "holds neither weights",
        "nul\0": "cannot be opened",
        "x" * 5000: "cannot be opened",
    }.items():
        with pytest.raises(InputError, match=message):
            open_checkpoint(tmp_path / name)


def test_links_out_of_the_folder_are_followed_to_read_and_not_to_copy(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", model__safetensors=small_safetensors(), config__json=CONFIG)
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(outside / "model.safetensors")
    (folder / "config.json").symlink_to("../outside/config.json")
    read = open_checkpoint(folder)
    assert read.config.hidden_size == 8 and read.tensors
    with pytest.raises(InputError, match="outside the folder"):
        safe_file(folder, "config.json")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        open_checkpoint(folder)


def test_links_of_the_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    model = tmp_path / "models--someone--head"
    blobs = write(model / "blobs", abc=small_safetensors(), cfg=CONFIG)
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blobs / "abc", snapshot))
    (snapshot / "config.json").symlink_to(os.path.relpath(blobs / "cfg", snapshot))
    assert open_checkpoint(snapshot).config.hidden_size == 8
    (snapshot / "extra.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link to a file that does not exist"):
        open_checkpoint(snapshot)


def test_a_pipe_and_a_folder_are_no_weights(tmp_path: Path) -> None:
    for name, make in {"a.safetensors": os.mkfifo, "b.safetensors": os.mkdir}.items():
        path = tmp_path / name
        make(path)
        started = time.monotonic()
        with pytest.raises(InputError, match="not a regular file"):
            open_checkpoint(tmp_path)
        assert time.monotonic() - started < 5, "opening a pipe would wait for a writer"
        path.rmdir() if path.is_dir() else path.unlink()
