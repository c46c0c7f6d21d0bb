"""All or nothing, and nothing outside: kills, full disks, hostile names, hostile journals, links."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3lab.checkpoint.safetensors import TensorToWrite, write_safetensors
from eagle3lab.errors import InputError
from eagle3lab.repair import JOURNAL, undo_repair, write_repair
from tests.repair.heads import OLD, drafter, hashes, plan, specforge
from tests.support.make_case import materialise

KILLS = 50
ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
SHARDED = {"mode": "sharded", "shards": {ONE: ["fc.*", "lm_head.*", "d2t", "t2d", "norm.*"], TWO: ["*"]}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A head of two shards, one of which has to be written anew."""
    folder = (
        materialise(specforge(template__prefix="layers.0.", files=SHARDED), tmp_path / "case") / "drafter"
    )
    (folder / "README.md").write_text("a head\n")
    return folder


def beside(out: Path) -> set[str]:
    return {path.name for path in out.parent.iterdir()}


def test_a_kill_at_any_point_leaves_nothing_or_a_complete_folder(source: Path, tmp_path: Path) -> None:
    planned, before = plan(source, OLD), hashes(source)
    write_repair(planned, tmp_path / "timed")
    complete = hashes(tmp_path / "timed")
    rng, places, there = random.Random(7), tmp_path / "places", 0
    longest = 0.02
    places.mkdir()
    for number in range(KILLS):
        out = places / f"out-{number}"
        child = os.fork()
        if child == 0:
            try:
                write_repair(planned, out)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # Later after a kill that came too early, earlier after one that came too late: most land in the middle.
        longest *= 0.8 if out.exists() else 1.25
        if out.exists():
            there += 1
            assert hashes(out) == complete
        assert hashes(source) == before
    assert 0 < there < KILLS  # kills came both too early and too late
    # What a kill left behind under a hidden name is removed by the next repair to the same place.
    number = next(n for n in range(KILLS) if list(places.glob(f".out-{n}.*")))
    shutil.rmtree(places / f"out-{number}", ignore_errors=True)
    write_repair(planned, places / f"out-{number}")
    assert not list(places.glob(f".out-{number}.*"))


@pytest.mark.parametrize("call", ["fsync", "rename", "link", "write", "open", "mkdir"])
def test_a_failure_at_any_call_leaves_nothing(
    call: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(source, OLD)
    real, out = getattr(os, call), tmp_path / "places" / "out"
    out.parent.mkdir()
    for nth in range(1, 40):
        left = nth

        def fails(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(28, "No space left on device")
            return real(*arguments, **named)

        monkeypatch.setattr(os, call, fails)
        try:
            write_repair(planned, out, sync=True)
        except (InputError, OSError) as error:
            assert "No space left" in str(error)
            assert beside(out) == set()
        else:
            if left > 0:
                return  # fewer calls than that: every one was tried
            shutil.rmtree(out)  # a call that may fail (a link becomes a copy)
        finally:
            monkeypatch.setattr(os, call, real)
    assert call in ("fsync", "open", "write")


def test_sync_puts_every_file_on_the_disk_before_the_folder_has_its_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced = tmp_path / "out", set()
    monkeypatch.setattr(os, "fsync", lambda at: synced.add(Path(f"/proc/self/fd/{at}").readlink()))
    write_repair(plan(source, OLD), tmp_path / "quick")
    assert not synced
    write_repair(plan(source, OLD), out, sync=True)
    names = {path.name for path in synced if path.parent.name.startswith(".out.")}
    assert names == {path.name for path in out.iterdir()}


def test_a_full_disk_gives_one_error_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "places" / "out"
    out.parent.mkdir()
    small = (source / TWO).stat().st_size // 2

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))

    done = subprocess.run(
        [sys.executable, "-m", "eagle3lab", "repair", str(source), "--for", OLD, "--out", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "cannot be written: File too large" in done.stderr
    assert TWO in done.stderr and "Make room" in done.stderr
    assert beside(out) == set()


def test_untouched_shards_are_the_same_file_on_disk_and_texts_are_not(source: Path, tmp_path: Path) -> None:
    write_repair(plan(source, OLD), tmp_path / "out")
    assert (tmp_path / "out" / ONE).samefile(source / ONE)
    assert not (tmp_path / "out" / TWO).samefile(source / TWO)
    assert not (tmp_path / "out" / "README.md").samefile(source / "README.md")


def test_a_file_system_without_links_gets_copies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    write_repair(plan(source, OLD), tmp_path / "out")
    assert not (tmp_path / "out" / ONE).samefile(source / ONE)
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == hashes(source)


@pytest.mark.parametrize("place", ["", "inside", "missing/out", "file", "dangling"])
def test_places_that_are_refused(place: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    out = source / place if place in ("", "inside") else tmp_path / place
    before = hashes(tmp_path)
    with pytest.raises(InputError):
        write_repair(plan(source, OLD), out)
    assert hashes(tmp_path) == before


def test_links_out_of_the_folder_are_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for make in (
        lambda: (source / "notes").symlink_to(tmp_path / "secret"),
        lambda: (source / "notes").symlink_to(tmp_path),
        lambda: os.mkfifo(source / "notes"),
    ):
        make()
        with pytest.raises(InputError, match="notes"):
            write_repair(plan(source, OLD), tmp_path / "out")
        assert not (tmp_path / "out").exists()
        (source / "notes").unlink()


def test_a_snapshot_of_the_hub_cache(source: Path, tmp_path: Path) -> None:
    """Its files are links into the model's blobs, which are followed and never written to."""
    model = tmp_path / "models--some--head"
    shutil.copytree(source, model / "blobs")
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for path in (model / "blobs").iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    blobs = hashes(model / "blobs")
    write_repair(plan(snapshot, OLD), tmp_path / "out")
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == blobs == hashes(model / "blobs")


def test_hostile_tensor_names_are_carried_and_never_reach_a_terminal(source: Path, tmp_path: Path) -> None:
    hostile = [
        "\x1b[31mverifier_norm.weight",
        "a[bold]verifier_norm.[/bold]",
        "../../verifier_norm.x",
        "é\u202everifier_norm.y",
    ]
    extra = [TensorToWrite(f"verifier_norm.{name}", "F32", (1,), lambda: (bytes(4),)) for name in hostile]
    shutil.rmtree(source)
    source = drafter("seed-kimi-layers0-eagle", tmp_path / "hostile")
    write_safetensors(source / "zz.safetensors", extra)
    (tmp_path / "home").mkdir()
    arguments = [str(source), "--for", OLD, "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "eagle3lab", "repair", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == hashes(source)


def test_hostile_names_in_a_refusal_are_escaped(tmp_path: Path) -> None:
    source = drafter("seed-kimi-layers0-eagle", tmp_path / "case")
    write_safetensors(
        source / "zz.safetensors",
        [TensorToWrite("layers.0.\x1b[31m[red]q_norm", "F32", (1,), lambda: (bytes(4),))],
    )
    for form in ("text", "json"):
        arguments = [str(source), "--for", OLD, "--dry-run", "--format", form]
        done = subprocess.run(
            [sys.executable, "-m", "eagle3lab", "repair", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert "\x1b" not in done.stdout and "[red]q_norm" in done.stdout.replace("\n", "")


def rename_first_file(journal: dict[str, Any], name: str) -> None:
    journal["source"]["files"][0]["name"] = name


def point_elsewhere(journal: dict[str, Any], name: str) -> None:
    journal["source"]["files"][0]["pieces"] = [{"file": name, "offset": 0, "length": 1}]


ATTACKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "climbs": lambda j: rename_first_file(j, "../escaped"),
    "absolute": lambda j: rename_first_file(j, "/tmp/escaped"),
    "nul": lambda j: rename_first_file(j, "a\0b"),
    "empty": lambda j: rename_first_file(j, ""),
    "dots": lambda j: rename_first_file(j, "a/./b"),
    "twice": lambda j: j["source"]["files"].append(j["source"]["files"][0]),
    "reads outside": lambda j: point_elsewhere(j, "../../etc/passwd"),
    "reads absent": lambda j: point_elsewhere(j, "absent"),
    "folder climbs": lambda j: j["source"]["folders"].append("../up"),
    "negative": lambda j: j["source"]["files"][0]["pieces"][0].update(offset=-1),
    "beyond": lambda j: j["source"]["files"][0]["pieces"][0].update(length=2**62),
    "text for number": lambda j: j["source"]["files"][0]["pieces"][0].update(length="9"),
    "no pieces": lambda j: j["source"]["files"][0].pop("pieces"),
    "bomb": lambda j: j["source"]["files"][0].update(
        pieces=[
            {
                "bytes": {
                    "length": 5,
                    "zlib": "eJztwTEBAAAAwqD1T20ND6AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
                }
            }
        ]
    ),
    "not base64": lambda j: j["source"]["files"][0].update(pieces=[{"bytes": {"length": 5, "zlib": "%%%"}}]),
    "version": lambda j: j.update(schema_version=99),
    "no source": lambda j: j.pop("source"),
    "wrong digest": lambda j: j["source"]["files"][0].update(sha256="0" * 64),
    "no digest": lambda j: j["source"]["files"][0].pop("sha256"),
    "another size": lambda j: j["source"]["files"][0].update(size=6),
    "without end": lambda j: j["source"]["files"][0].update(
        pieces=[{"file": TWO, "offset": 0, "length": 9000}] * 2000, size=9000 * 2000
    ),
    "pieces of bytes": lambda j: j["source"]["files"][0].update(pieces=[7], size=0),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_journal_is_refused_and_leaves_nothing(attack: str, source: Path, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    write_repair(plan(source, OLD), repaired)
    journal = json.loads((repaired / JOURNAL).read_text())
    ATTACKS[attack](journal)
    (repaired / JOURNAL).write_text(json.dumps(journal))
    before = hashes(tmp_path)
    with pytest.raises(InputError):
        undo_repair(repaired, tmp_path / "undone")
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("damage", ["weights", "short", "no journal", "not json"])
def test_a_folder_that_was_changed_is_not_undone(damage: str, source: Path, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    write_repair(plan(source, OLD), repaired)
    weights = repaired / TWO
    raw = bytearray(weights.read_bytes())
    if damage == "weights":
        raw[-7] ^= 1
    if damage == "short":
        del raw[-7:]
    weights.write_bytes(raw)
    if damage == "no journal":
        (repaired / JOURNAL).unlink()
    if damage == "not json":
        (repaired / JOURNAL).write_text("{")
    with pytest.raises(InputError):
        undo_repair(repaired, tmp_path / "undone")
    assert not (tmp_path / "undone").exists()


def test_values_that_do_not_lie_next_to_each_other(tmp_path: Path) -> None:
    """A torch file with a transposed tensor and two that share their storage: written out plainly, undone exactly."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    source = drafter("seed-kimi-layers0-eagle", tmp_path / "case")
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    name = "layers.0.mlp.gate_proj.weight"
    state[name] = state[name].t().contiguous().t()
    state["layers.0.input_layernorm.weight"] = state["norm.weight"]
    torch.save(state, source / "pytorch_model.bin")
    write_repair(plan(source, OLD), tmp_path / "out")
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    copy = load_file(tmp_path / "out" / "model.safetensors")
    for key, values in state.items():
        assert torch.equal(copy[key.replace("layers.0.", "midlayer.")], values), key
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == hashes(source)


def test_values_stay_aligned_when_a_map_changes_its_size(tmp_path: Path) -> None:
    """A map of int64 where one of bfloat16 was must not push float32 values off their alignment."""
    from safetensors import safe_open

    case = specforge(
        template__d2t="absolute",
        template__d2t_dtype="F32",
        template__dtype="F32",
        template__draft_vocab=501,
        config__draft_vocab_size=501,
    )
    source = materialise(case, tmp_path / "case") / "drafter"
    write_repair(plan(source, OLD), tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as stream:
        assert stream.get_tensor("d2t").dtype == np.int64
        for name in stream.keys():  # noqa: SIM118
            stream.get_tensor(name)


@pytest.mark.parametrize("mode", [0o6755, 0o777, 0o666, 0o1644, 0o600])
def test_a_copy_has_no_special_permissions_and_nobody_else_writes_it(
    mode: int, source: Path, tmp_path: Path
) -> None:
    """Of linked, copied and rewritten files alike; the original keeps its own."""
    files = [ONE, TWO, "config.json", "README.md"]
    for name in files:
        (source / name).chmod(mode)
    write_repair(plan(source, OLD), tmp_path / "out")
    undo_repair(tmp_path / "out", tmp_path / "undone")
    for name in files:
        assert (source / name).stat().st_mode & 0o7777 == mode
        for folder in ("out", "undone"):
            found = (tmp_path / folder / name).stat().st_mode & 0o7777
            assert found & ~0o755 == 0 and found & 0o400, (folder, name, oct(found))


def test_a_large_file_is_compared_whole(tmp_path: Path) -> None:
    """One byte in the middle of what was only sampled once: the undo says so."""
    case = materialise(specforge(template__prefix="layers.0."), tmp_path / "case") / "drafter"
    large = case / "tokenizer.model"
    with large.open("wb") as stream:
        stream.truncate(150 * 2**20)
    write_repair(plan(case, OLD), tmp_path / "out")
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == hashes(case)
    with (tmp_path / "out" / large.name).open("r+b") as stream:
        stream.seek(97 * 2**20 + 12345)
        stream.write(b"x")
    with pytest.raises(InputError, match=r"tokenizer\.model.*cannot be put together"):
        undo_repair(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_process_that_is_asked_to_end_removes_what_it_began(
    number: signal.Signals, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "places" / "out"
    out.parent.mkdir()
    program = (
        "import os, sys, time; from pathlib import Path; from eagle3lab.repair.folder import atomic_folder\n"
        "with atomic_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'file').write_text('begun'); print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.wait(timeout=20) != 0
    assert beside(out) == set()


def test_two_at_once_for_one_place(source: Path, tmp_path: Path) -> None:
    """One of them writes the copy, the others say in one line that it is there; nothing else is left."""
    out, before = tmp_path / "places" / "out", hashes(source)
    out.parent.mkdir()
    command = [sys.executable, "-m", "eagle3lab", "repair", str(source), "--for", OLD, "--out", str(out)]
    children = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ended = [(child.wait(timeout=60), child.stderr.read() if child.stderr else "") for child in children]
    assert sorted(status for status, _ in ended) == [0, 2, 2, 2]
    assert all(text.count("\n") == 1 and "out" in text for status, text in ended if status)
    assert beside(out) == {"out"}
    undo_repair(out, tmp_path / "undone")
    assert hashes(tmp_path / "undone") == before


def test_nothing_is_made_before_the_place_is_allowed(source: Path, tmp_path: Path) -> None:
    """Not even beside it: whatever is refused is refused first."""
    made: list[str] = []
    planned = plan(source, OLD)
    for out in (source / "inside", source / "sub" / "inside", tmp_path):
        with pytest.raises(InputError):
            write_repair(planned, out)
    with pytest.raises(InputError):
        write_repair(plan(source, "vllm==0.33.0"), tmp_path / "out", verify=True)
    made += [path.name for path in (*tmp_path.iterdir(), *source.iterdir()) if path.name.startswith(".")]
    assert made == [] and not (tmp_path / "out").exists()


def test_a_journal_that_is_too_large_is_one_error(source: Path, tmp_path: Path) -> None:
    write_repair(plan(source, OLD), tmp_path / "out")
    with (tmp_path / "out" / JOURNAL).open("ab") as stream:
        stream.truncate(2**31)
    with pytest.raises(InputError, match=JOURNAL):
        undo_repair(tmp_path / "out", tmp_path / "undone")
    assert not (tmp_path / "undone").exists()
