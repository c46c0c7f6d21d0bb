"""The fake engine (`fake_engine.py`) as something that can be started."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.serving.engine import Engine


def write_fake(folder: Path, release: str = "0.0.0") -> Engine:
    """A package named sglang in the new `folder`, and the engine that runs it."""
    package = folder / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    modules = {"launch_server": "fake_engine", "bench_serving": "fake_bench", "texts": "fake_texts"}
    for module, source in modules.items():
        (package / f"{module}.py").write_bytes(Path(__file__).with_name(f"{source}.py").read_bytes())
    return Engine(release, path=(folder,))
