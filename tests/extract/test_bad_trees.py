"""What is no SGLang, or a damaged one: one clear error or an unknown fact, never a traceback."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.engines.extract import tree as tree_module
from eagle3lab.errors import InputError
from tests.extract.trees import LOADER, small_copy

SRT = Path("python/sglang/srt")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        extract(tmp_path / "missing")
    with pytest.raises(InputError, match="too long"):
        extract(tmp_path / ("x" * 5000))


def test_a_folder_without_sglang(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "registry.py").write_text("")
    with pytest.raises(InputError, match="holds no SGLang source tree") as caught:
        extract(tmp_path)
    assert str(tmp_path) in str(caught.value) and "checkout" in str(caught.value)


def test_files_that_are_no_wheel_of_sglang(tmp_path: Path) -> None:
    file = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    file.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InputError, match="is not a wheel"):
        extract(file)
    file.unlink()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("other/module.py", "")
    with pytest.raises(InputError, match="holds no SGLang source tree"):
        extract(file)


def test_a_damaged_wheel(tmp_path: Path) -> None:
    file = tmp_path / "sglang.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("server_args.py", "models/registry.py", LOADER):
            archive.writestr(f"sglang/srt/{name}", "x = 'spec_info.hidden_states'\n" * 50)
    data = bytearray(file.read_bytes())
    at = data.find(b"x = 'spec", data.find(LOADER.encode()))
    data[at : at + 9] = b"y = 'spec"
    file.write_bytes(bytes(data))
    facts = extract(file)
    assert any(unknown.fact == "files" and unknown.place == LOADER for unknown in facts.unknown)


def is_unknown(facts: ReleaseFacts) -> None:
    """Without its loader nothing can be simulated, and every gap has a reason."""
    assert facts.drafter is None and facts.names is None and facts.parameters is None
    assert {"drafter", "names", "parameters", "files"} <= {unknown.fact for unknown in facts.unknown}
    with pytest.raises(InputError, match="the source does not show"):
        facts.engine_facts()


@pytest.mark.parametrize(
    "content",
    [
        b"def broken(:\n    spec_info.hidden_states\n",
        b"# spec_info.hidden_states\n\xff\xfe\n",
        b"# spec_info.hidden_states\nx = \x00\n",
        b"# spec_info.hidden_states\nx = " + b"(" * 50_000 + b"\n",
        b"# spec_info.hidden_states\nx = " + b"-" * 500_000 + b"1\n",
    ],
    ids=["syntax", "bytes", "null", "nested", "deep"],
)
def test_a_broken_loader_file(tmp_path: Path, content: bytes) -> None:
    small_copy(tmp_path)
    (tmp_path / SRT / LOADER).write_bytes(content)
    is_unknown(extract(tmp_path))


def test_code_that_is_parsed_but_too_deep_to_be_walked(tmp_path: Path) -> None:
    deep = f"name = {'+'.join(['name'] * 1500)}"
    small_copy(tmp_path, {LOADER: ("name = name.replace(weight_name, param_name)", deep)})
    with pytest.raises(InputError, match="nested too deeply"):
        extract(tmp_path)


def test_a_huge_file(tmp_path: Path) -> None:
    small_copy(tmp_path)
    os.truncate(tmp_path / SRT / LOADER, tree_module.LARGEST_FILE + 1)
    is_unknown(extract(tmp_path))


def test_a_pipe_instead_of_a_file(tmp_path: Path) -> None:
    small_copy(tmp_path)
    (tmp_path / SRT / LOADER).unlink()
    os.mkfifo(tmp_path / SRT / LOADER)
    is_unknown(extract(tmp_path))


def test_loops_of_links(tmp_path: Path) -> None:
    small_copy(tmp_path)
    (tmp_path / SRT / "models" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / SRT / "models" / "self.py").symlink_to(tmp_path / SRT / "models" / "self.py")
    facts = extract(tmp_path)
    assert facts.engine_facts().release == "0.5.9"
    assert [unknown.place for unknown in facts.unknown] == ["models/self.py"]


def test_far_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_copy(tmp_path)
    monkeypatch.setattr(tree_module, "MOST_FILES", 5)
    with pytest.raises(InputError, match="more than 5 Python files"):
        extract(tmp_path)


def test_without_a_release_or_a_requirement(tmp_path: Path) -> None:
    small_copy(tmp_path)
    (tmp_path / "python" / "sglang" / "version.py").unlink()
    (tmp_path / "python" / "pyproject.toml").unlink()
    facts = extract(tmp_path)
    assert {unknown.fact for unknown in facts.unknown} == {"release", "config_checked"}
    assert facts.engine_facts("a fork").release == "a fork"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield small_copy(tmp_path_factory.mktemp("fuzzed"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_survived(small: Path, data: st.DataObject) -> None:
    """Lines dropped, doubled and swapped in the files that matter: facts or unknown facts, nothing else."""
    name = data.draw(st.sampled_from([LOADER, "models/llama.py", "managers/scheduler_metrics_mixin.py"]))
    file = small / SRT / name
    original = file.read_text()
    lines = original.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        action = data.draw(st.sampled_from(["drop", "double", "swap"]))
        if action == "drop":
            del lines[at]
        elif action == "double":
            lines.insert(to, lines[at])
        else:
            lines[at], lines[to] = lines[to], lines[at]
    try:
        file.write_text("\n".join(lines))
        facts = extract(small)
    finally:
        file.write_text(original)
    said = {unknown.fact.partition(".")[0] for unknown in facts.unknown}
    for field in ("drafter", "capture", "acceptance", "log", "wiring"):
        assert getattr(facts, field) is not None or field in said, field
    # A class has the variant that its loader and its constructors have: without it neither half is known.
    assert (facts.names is None) == (facts.parameters is None)
    assert facts.names is not None or said & {"names", "parameters", "vocabulary"}
