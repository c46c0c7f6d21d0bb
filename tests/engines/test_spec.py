"""From `sglang==0.5.9`, `installed` or a path to a release and its facts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from eagle3lab.engines.arguments import argument_rules
from eagle3lab.engines.atlas.resolve import installed_engine, known_engines, resolve_engine
from eagle3lab.engines.release import nearest_known, parse_release
from eagle3lab.errors import InputError
from tests.extract.trees import LOADER, change, linked_copy, small_copy


def test_known_releases_in_order_of_release() -> None:
    known = known_engines()
    assert (known[0], known[-1], len(known)) == ("sglang==0.4.6", "sglang==0.5.23", 62)
    assert known.index("sglang==0.5.9") < known.index("sglang==0.5.10")


@pytest.mark.parametrize("spec", ["sglang==0.5.9", " SGLang == 0.5.9 "])
def test_a_release(spec: str) -> None:
    engine = resolve_engine(spec)
    assert (engine.kind, engine.release, engine.spec, engine.notes) == (
        "sglang",
        "0.5.9",
        "sglang==0.5.9",
        (),
    )


@pytest.mark.parametrize("spec", known_engines())
def test_every_known_release_can_be_simulated(spec: str) -> None:
    engine = resolve_engine(spec)
    assert engine.spec == spec
    conditions = {p.when for p in engine.parameters} | {r.when for r in engine.construction}
    conditions |= {s.when for s in engine.names.special}
    assert conditions - {None} <= engine.switches.keys()


@pytest.mark.parametrize("spec", ["sglang==0.1", "vllm==0.5.9", "lmdeploy==1.0", "sglang==0.0.0.dev1"])
def test_an_unknown_release_names_the_known_ones(spec: str) -> None:
    with pytest.raises(InputError, match=r"Known releases: sglang==0\.4\.6 to sglang==0\.5\.23") as caught:
        resolve_engine(spec)
    assert "\x1b" not in str(caught.value)


def test_a_release_that_is_not_known_gets_the_nearest_older_one_and_a_note() -> None:
    engine = resolve_engine("sglang==0.5.9.post7")
    assert engine.release == "0.5.9"
    assert "no facts about sglang==0.5.9.post7" in engine.notes[0] and "sglang==0.5.9" in engine.notes[0]


@pytest.mark.parametrize("spec", ["", "sglang", "==", "sglang==", "==0.5.9", "x" * 5000, "\x00"])
def test_something_else(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="does not name an engine release"):
        resolve_engine(spec)


def test_a_source_tree(tmp_path: Path) -> None:
    engine = resolve_engine(str(small_copy(tmp_path)))
    assert engine.release == "0.5.9"
    assert engine.notes == (f"facts read from the source at {tmp_path}",)
    with pytest.raises(InputError, match="no such file or folder"):
        resolve_engine(str(tmp_path / "missing"))


class Installed:
    """A package as importlib.metadata finds it, somewhere else."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self.folder = folder
        record = importlib.metadata.distribution("sglang").files or []
        self.files = [file for file in record if file.as_posix().startswith("sglang/srt/")]

    def locate_file(self, name: object) -> Path:
        return self.folder / str(name)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str = "0.5.23") -> None:
    package = Installed(folder, version)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda kind: package)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_the_installed_release_comes_from_the_atlas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, linked_copy(tmp_path, "0.5.23"))
    engine = resolve_engine("installed")
    assert (engine.spec, engine.notes) == ("sglang==0.5.23", ())


def test_a_changed_installed_release_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, linked_copy(tmp_path, "0.5.23"))
    change(tmp_path / "sglang" / "srt" / LOADER, '"midlayer": "layers.0"', '"decoder": "layers.0"')
    with pytest.raises(InputError, match=r"none of \d known variants .* \(models/llama_eagle3.py:\d+\)"):
        resolve_engine("installed")


def test_a_change_that_loads_alike_is_read_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, linked_copy(tmp_path, "0.5.23"))
    change(
        tmp_path / "sglang" / "srt" / LOADER,
        "class LlamaForCausalLMEagle3",
        "\n\nclass LlamaForCausalLMEagle3",
    )
    engine = resolve_engine("installed")
    known = resolve_engine("sglang==0.5.23").names.renames
    assert [(one.old, one.new) for one in engine.names.renames] == [(one.old, one.new) for one in known]
    assert "was changed (sglang/srt/models/llama_eagle3.py)" in engine.notes[0]


def test_an_installed_release_that_is_not_in_the_atlas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "9.9")
    assert "nearest older release" in resolve_engine("installed").notes[0]
    small_copy(tmp_path)
    (tmp_path / "python" / "sglang").rename(tmp_path / "sglang")
    engine = resolve_engine("installed")
    assert engine.names.renames == () and "read from the installed source" in engine.notes[0]


class Editable(Installed):
    """A package that was installed with `pip install -e`, as in the images of lmsysorg and slime."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version, self.folder, self.files = version, folder, []

    def locate_file(self, name: object) -> Path:
        return self.folder / "site-packages" / str(name)

    def read_text(self, name: str) -> str | None:
        url = f"file://{self.folder}/python"
        return json.dumps({"url": url, "dir_info": {"editable": True}}) if name == "direct_url.json" else None


def test_an_editable_installation_is_what_lies_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_copy(tmp_path)
    package = Editable(tmp_path, "0.0.0.dev1+g1234567")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda kind: package)
    found = installed_engine()
    assert (found.root, found.own) == (tmp_path / "python" / "sglang", True)
    engine = resolve_engine("installed")
    assert engine.names.renames == () and "is installed from a source tree" in engine.notes[0]
    assert argument_rules("installed").release == "0.5.9"


def test_sources_on_the_module_path_count_as_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_copy(tmp_path)
    (tmp_path / "python" / "sglang" / "__init__.py").touch()

    def missing(kind: str) -> str:
        raise importlib.metadata.PackageNotFoundError(kind)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "python")])
    importlib.invalidate_caches()
    found = installed_engine()
    assert (found.root, found.package) == (tmp_path / "python" / "sglang", None)


@pytest.mark.parametrize(
    ("text", "kind", "number", "known"),
    [
        ("vllm==0.19.2rc1.dev8+g1a2b3c4", "vllm", "0.19.2rc1.dev8+g1a2b3c4", "vllm==0.19.1"),
        (" SGLang == v0.5.9 ", "sglang", "0.5.9", "sglang==0.5.9"),
        ("sglang==0.5.9+cu129", "sglang", "0.5.9+cu129", "sglang==0.5.9"),
        ("sglang==0.0.0.dev1+g12", "sglang", "0.0.0.dev1+g12", "None"),
        ("tensorrt-llm==1.2.0rc3", "tensorrt-llm", "1.2.0rc3", "None"),
        ("llama.cpp==b4567", "llama.cpp", "b4567", "None"),
        ("my-engine==4", "my-engine", "4", "None"),
        ("vllm-ascend", "vllm-ascend", "", "None"),
    ],
)
def test_what_a_user_types(text: str, kind: str, number: str, known: str) -> None:
    release = parse_release(text)
    assert (release.kind, release.number, str(nearest_known(release))) == (kind, number, known)


def test_a_local_label_makes_no_other_release() -> None:
    assert resolve_engine("sglang==0.5.9+cu129").notes == ()


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str) -> str:
        raise importlib.metadata.PackageNotFoundError(kind)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for ask in (lambda: resolve_engine("installed"), installed_engine):
        with pytest.raises(InputError, match="no engine is installed"):
            ask()
