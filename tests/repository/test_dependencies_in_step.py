"""pyproject.toml, the lock and environment.yml name the same things."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.project import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def pins(name: str) -> dict[str, Version]:
    """Canonical package name -> pinned version of one requirements file."""
    out = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+", line), f"{name}: not an exact pin: {line!r}"
            package, _, version = line.partition("==")
            assert canonicalize_name(package) not in out, f"{name}: {package} twice"
            out[canonicalize_name(package)] = Version(version)
    return out


LOCK = {**pins("lock.txt"), **pins("torch.txt")}


@pytest.mark.parametrize(
    "requirement", [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]
)
def test_the_lock_satisfies_every_requirement_of_the_project(requirement: str) -> None:
    wanted = Requirement(requirement)
    assert LOCK[canonicalize_name(wanted.name)] in wanted.specifier


@pytest.mark.parametrize("name", ["unresolved.in", "runtime.in"])
def test_the_lock_was_made_from_its_sources(name: str) -> None:
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            wanted = Requirement(line)
            assert LOCK[canonicalize_name(wanted.name)] in wanted.specifier, f"run make lock: {line}"


def test_torch_and_its_cuda_parts_stay_out_of_the_lock() -> None:
    assert not [name for name in pins("lock.txt") if name == "torch" or name.startswith(("nvidia-", "cuda-"))]


def test_the_second_engines_are_other_releases_than_the_installed_one() -> None:
    assert pins("engines.txt")["sglang"] != LOCK["sglang"]


def test_environment_yml_names_the_engine_and_the_extras_of_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert EXTRAS["sglang"][0] in pip
    tool, laboratory = [item for item in pip if item.startswith("-e ")]
    assert laboratory == "-e ./lab"
    named = re.fullmatch(r"-e \.\[([a-z,]+)\]", tool)
    assert named and set(named[1].split(",")) <= set(EXTRAS)
    (python,) = [
        item for item in environment["dependencies"] if isinstance(item, str) and item.startswith("python=")
    ]
    assert Version(python.removeprefix("python=")) in Requirement(f"x{PROJECT['requires-python']}").specifier
