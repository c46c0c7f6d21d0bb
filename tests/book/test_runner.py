"""The runner on tiny notebooks: each way to fail is reported, nothing runs twice, and no process is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell

from eagle3lab.book import chapters
from eagle3lab.book.__main__ import main
from eagle3lab.book.chapters import ChapterRun, find_chapters, read_record
from eagle3lab.book.parameters import declared_in
from eagle3lab.book.runner import run
from eagle3lab.errors import InputError
from tests.book.project import CLAIM, Project
from tests.support.signals import interruptible

# A process that outlives its parents' sessions, as a server that a chapter forgot to stop would.
_FORGOTTEN = """
import subprocess, sys, os
from pathlib import Path
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
Path(where).write_text(f"{os.getpid()} {left.pid}")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, ChapterRun]]:
    """One run over every way to fail, and one chapter that is well."""
    project = Project(tmp_path_factory.mktemp("broken") / "project")
    project.chapter("00-well", CLAIM, "# a comment runs too", "")
    project.chapter(
        "claim", "x = 1", "from eagle3lab.book import claim\nclaim('one is two', 1 == 2, 1)", CLAIM
    )
    project.chapter("dead", CLAIM, "import os\nos._exit(3)")
    project.chapter("error", "def inner():\n    return {}['absent']", "inner()", CLAIM)
    project.chapter("exit", CLAIM, "import sys\nsys.exit(0)", "never = 1")
    project.chapter("none", "x = 1")
    skipped = nbformat.read(project.chapter("skipped", CLAIM, "x = 1"), as_version=4)
    skipped.cells[-1].metadata["tags"] = ["skip-execution"]
    nbformat.write(skipped, project.layout.notebooks / "skipped.ipynb")
    project.chapter("slow", CLAIM, "import time\ntime.sleep(120)", "never = 1")
    project.chapter("unreadable").write_text("{ not json")
    runs = run(project.layout, find_chapters(project.layout), jobs=4, cell_timeout=3)
    return project, {one.chapter: one for one in runs}


@pytest.mark.parametrize(
    ("chapter", "kind", "cell", "message", "source"),
    [
        ("claim", "claim", 2, "one is two (measured 1)", "claim('one is two', 1 == 2, 1)"),
        ("dead", "dead-kernel", 2, "kernel died", "os._exit(3)"),
        ("error", "error", 2, "KeyError: 'absent'", "inner()"),
        ("exit", "exit", 2, "SystemExit", "sys.exit(0)"),
        ("none", "no-claim", None, "makes no claim", ""),
        ("skipped", "never-ran", 2, "cells that never ran: 2", ""),
        ("slow", "timeout", 2, "longer than 3 s", "time.sleep(120)"),
        ("unreadable", "unreadable", None, "not a notebook", ""),
    ],
)
def test_each_failure_is_found_and_placed(
    broken: tuple[Project, dict[str, ChapterRun]],
    chapter: str,
    kind: str,
    cell: int | None,
    message: str,
    source: str,
) -> None:
    failure = broken[1][chapter].failure
    assert failure is not None
    assert (failure.kind, failure.cell) == (kind, cell)
    assert message in failure.message
    assert source in failure.source


def test_a_traceback_is_kept_without_colours(broken: tuple[Project, dict[str, ChapterRun]]) -> None:
    failure = broken[1]["error"].failure
    assert failure is not None
    assert "return {}['absent']" in failure.traceback
    assert "\x1b" not in failure.traceback


def test_failures_do_not_stop_the_others(broken: tuple[Project, dict[str, ChapterRun]]) -> None:
    project, runs = broken
    assert runs["00-well"].failure is None
    assert len(runs) == 9
    assert sorted(path.name for path in project.layout.executed.glob("*.ipynb")) == ["00-well.ipynb"]
    assert (project.layout.failed / "error.ipynb").is_file()


def test_claims_json_holds_claims_kept_and_broken(broken: tuple[Project, dict[str, ChapterRun]]) -> None:
    data = json.loads(broken[0].layout.claims.read_text())
    assert data["schema_version"] == 1
    assert {
        "chapter": "claim",
        "cell": 2,
        "text": "one is two",
        "measured": 1,
        "expected": None,
        "passed": False,
    } in (data["claims"])
    assert (
        sum(made["passed"] for made in data["claims"]) == 5
    )  # well, dead, exit, skipped and slow each made theirs
    well = next(one for one in data["chapters"] if one["chapter"] == "00-well")
    assert (well["claims"], well["failure"]) == (1, None)
    assert well["seconds"] > 0
    assert data["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_console_reports_all_failures_at_the_end(
    broken: tuple[Project, dict[str, ChapterRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    root = broken[0].layout.root
    assert main(["--root", str(root), "--cell-timeout", "3", "00", "error", "none", "claim"]) == 1
    out = capsys.readouterr().out
    assert "cached  00-well" in out
    for expected in (
        "error, cell In [2]",
        "KeyError",
        "none",
        "makes no claim",
        "claim, cell In [2]",
        "3 failed of 4",
    ):
        assert expected in out


def test_a_chapter_runs_in_notebooks_on_this_interpreter(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project.layout.root / "jupyter" / "kernels" / "python3"
    elsewhere.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "another environment", "language": "python"}
    (elsewhere / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(elsewhere.parents[1]))
    project.chapter(
        "one",
        "import os, sys\nfrom eagle3lab.book import claim",
        f"claim('same Python', sys.executable == {sys.executable!r}, sys.executable)",
        f"claim('beside the notebook', os.getcwd() == {str(project.layout.notebooks)!r}, os.getcwd())",
    )
    (result,) = run(project.layout, find_chapters(project.layout))
    assert result.failure is None


def test_an_unchanged_chapter_is_not_run_again(project: Project) -> None:
    count = project.layout.root / "count"
    code = f"open({str(count)!r}, 'a').write('x')"
    notebook = project.chapter("one", code, CLAIM)

    def times() -> tuple[int, bool]:
        (result,) = run(project.layout, [notebook])
        assert result.failure is None
        return len(count.read_text()), result.cached

    assert times() == (1, False)
    began = time.monotonic()
    assert times() == (1, True)
    assert time.monotonic() - began < 1.0
    project.chapter("one", code, CLAIM, "changed = 1")
    assert times() == (2, False)
    run(project.layout, [notebook], force=True)
    assert len(count.read_text()) == 3


def test_all_that_a_chapter_depends_on_is_in_its_digest(project: Project, tmp_path: Path) -> None:
    root, head = project.layout.root, tmp_path / "head"
    head.mkdir()

    def digest_now(**parameters: object) -> str:
        return chapters.digest_of_chapter(notebook, parameters, chapters.surroundings(root))

    notebook = project.chapter("one", CLAIM)
    seen = [digest_now(), digest_now(n=1), digest_now(n=2), digest_now(drafter=str(head))]
    (head / "config.json").write_text("{}")
    seen.append(digest_now(drafter=str(head)))
    for name in (
        "requirements/lock.txt",
        "specimen/drafter/model.safetensors",
        "specimen/copy/model.safetensors",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("same text")
        seen.append(digest_now())
    (chapters.PACKAGE / "module.py").write_text("x = 1")
    seen.append(digest_now())
    project.chapter("one", CLAIM, "x = 1")
    seen.append(digest_now())
    assert len(set(seen)) == len(seen)
    (chapters.PACKAGE / "__pycache__").mkdir()
    (chapters.PACKAGE / "__pycache__" / "module.pyc").write_text("byte code")
    assert digest_now() == seen[-1]


def test_a_failed_chapter_is_run_again_and_its_old_pages_go(project: Project) -> None:
    notebook = project.chapter("one", CLAIM)
    project.pretend_it_ran(notebook)
    project.chapter("one", "1 / 0", CLAIM)
    for _ in range(2):
        (result,) = run(project.layout, [notebook])
        assert result.failure is not None
        assert not result.cached
    assert not (project.layout.executed / "one.ipynb").exists()
    record = read_record(project.layout, "one")
    assert record is not None
    assert record.failure == result.failure


def test_chapters_run_at_the_same_time(project: Project) -> None:
    meet = (
        "import time\nfrom pathlib import Path\nPath('{mine}').touch()\nend = time.monotonic() + 60\n"
        "while not Path('{other}').exists() and time.monotonic() < end:\n    time.sleep(0.05)\n"
        "from eagle3lab.book import claim\nclaim('the other came', Path('{other}').exists())"
    )
    project.chapter("a", meet.format(mine="a.here", other="b.here"))
    project.chapter("b", meet.format(mine="b.here", other="a.here"))
    assert [one.failure for one in run(project.layout, find_chapters(project.layout), jobs=2)] == [None, None]


def test_what_a_chapter_leaves_running_is_stopped(project: Project, tmp_path: Path) -> None:
    where = tmp_path / "pids"
    notebook = project.chapter("one", _FORGOTTEN, CLAIM, parameters="where: str = ''  # where to write")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    (result,) = run(project.layout, [notebook], {"one": {"where": str(where)}})
    assert result.failure is None
    assert _gone(where)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_an_interrupted_run_leaves_nothing_behind(
    project: Project, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    if number == signal.SIGKILL and not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells a child that its parent was killed")
    where = tmp_path / "pids"
    project.chapter(
        "one", _FORGOTTEN, "import time\ntime.sleep(300)", parameters="where: str = ''  # where to write"
    )
    command = [
        sys.executable,
        "-m",
        "eagle3lab.book",
        "--root",
        str(project.layout.root),
        "-p",
        "where",
        str(where),
    ]
    runner = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=interruptible
    )
    try:
        assert _eventually(lambda: where.is_file() and len(where.read_text().split()) == 2)
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=30)
    finally:
        runner.kill()
    assert runner.returncode == status, output
    assert "Traceback" not in output
    assert _eventually(lambda: _gone(where))


def test_parameters_reach_the_chapters_that_have_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = project.layout.root / "heads" / "mine"
    drafter.mkdir(parents=True)
    project.chapter(
        "one",
        "from eagle3lab.book import claim",
        "seen = (steps, ratio, flag)\nclaim('typed', seen == (7, 0.5, False), str(seen))",
        f"claim('absolute', drafter == {str(drafter)!r}, drafter)",
        parameters="steps: int = 4\nratio: float = 1.0\nflag: bool = True\ndrafter: str = ''",
    )
    project.chapter("two", CLAIM)
    given = project.layout.root / "given.json"
    given.write_text(json.dumps({"steps": 3, "one": {"ratio": 0.5}, "flag": False}))
    monkeypatch.chdir(project.layout.root)
    arguments = [
        "--root",
        ".",
        "--parameters",
        "given.json",
        "-p",
        "steps",
        "7",
        "-p",
        "drafter",
        "heads/mine",
    ]
    assert main(arguments) == 0
    record = read_record(project.layout, "one")
    assert record is not None
    assert dict(record.parameters) == {"steps": 7, "ratio": 0.5, "flag": False, "drafter": str(drafter)}
    second = read_record(project.layout, "two")
    assert second is not None
    assert dict(second.parameters) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "stepz", "4"], "no chapter among one has a parameter 'stepz'. Known: steps"),
        (["-p", "steps", "four"], "parameter 'steps' is int, 'four' is not"),
        (["--parameters", "unknown.json"], "has a parameter 'other'"),
        (["--parameters", "list.json"], "not a JSON object"),
        (["--parameters", "absent.json"], "absent.json"),
        (["nine"], "no chapter is called 'nine'. Choose from one"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_runs(
    project: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    project.chapter("one", CLAIM, parameters="steps: int = 4  # draft steps")
    monkeypatch.chdir(project.layout.root)
    Path("unknown.json").write_text('{"one": {"other": 1}}')
    Path("list.json").write_text("[1]")
    assert main(["--root", str(project.layout.root), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not project.layout.out.exists()


def test_a_project_without_notebooks_is_an_error(project: Project) -> None:
    with pytest.raises(InputError, match="no notebooks here"):
        find_chapters(project.layout)


def _gone(where: Path) -> bool:
    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(ended(int(pid)) for pid in where.read_text().split())


def _eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_every_declared_parameter_is_found_whatever_its_default() -> None:
    """A default with a sign of equality in it too, and a name of one letter."""
    source = 'engine: str = "sglang==0.5.9"  # the release\na = 3\nwhere: Path | None = None\nprint(a == 3)\n'
    cells = [new_code_cell("other = 1"), new_code_cell(source, metadata={"tags": ["parameters"]})]
    assert declared_in(cells) == {"engine": "str", "a": "None", "where": "Path | None"}
    assert declared_in([new_code_cell("no Python at all", metadata={"tags": ["parameters"]})]) == {}
    assert declared_in([]) == {}
