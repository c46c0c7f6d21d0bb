"""The reports: JSON against its schema, SARIF's structure, HTML without outside requests, hostile names escaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from eagle3lab.diagnosis import Diagnosis, diagnose
from eagle3lab.diagnosis.reports import drawn, fragment, page, sarif
from tests.diagnosis.corpus import load, run
from tests.diagnosis.injected import without_log

SCHEMA = json.loads(files("eagle3lab.diagnosis").joinpath("report.schema.json").read_text("utf-8"))
SEVERAL = [
    "seed-kimi-layers0-eagle",
    "files-truncated",
    "runtime-crash-oom",
    "ok-lora-0.5.20",
    "training-weak-vllm",
]
HOSTILE = 'a\x1b]0;owned\x07\x1b[31m<img src=x onerror=alert(1)>"\u202e[bold]x[/bold]\n'


@pytest.fixture(params=SEVERAL)
def diagnosis(request: pytest.FixtureRequest, tmp_path: Path) -> Diagnosis:
    return run(load(request.param), tmp_path)


def rendered(diagnosis: Diagnosis) -> str:
    from rich.console import Console

    console = Console(width=200, record=True, color_system="truecolor", force_terminal=True)
    with console.capture() as capture:
        for line in drawn(diagnosis):
            console.print(line)
    return capture.get()


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_json_fits_its_schema(diagnosis: Diagnosis) -> None:
    report = json.loads(json.dumps(diagnosis.as_json(), allow_nan=False))
    jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_schema_refuses_other_reports(tmp_path: Path) -> None:
    report = run(load("names-fc-missing"), tmp_path).as_json()
    report["findings"][0]["severity"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_sarif(diagnosis: Diagnosis) -> None:
    report = json.loads(json.dumps(sarif(diagnosis), allow_nan=False))
    assert report["version"] == "2.1.0"
    (only,) = report["runs"]
    rules = only["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(only["results"]) == len(diagnosis.findings)
    for result, finding in zip(only["results"], diagnosis.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] in ("error", "warning", "note")
        assert 0 <= result["rank"] <= 100
        assert finding.title in result["message"]["text"]
        for location in result["locations"]:
            uri = location.get("physicalLocation", {}).get("artifactLocation", {}).get("uri", "")
            assert re.fullmatch(r"[A-Za-z0-9._~/%:-]*", uri)
            assert location.get("physicalLocation", {}).get("region", {}).get("startLine", 1) >= 1


class Outside(HTMLParser):
    """Elements and attributes that could reach outside or run a script."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed", "a", "base", "form"):
            self.bad.append(tag)
        self.bad += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


def test_html_is_self_contained(diagnosis: Diagnosis) -> None:
    text = page(diagnosis)
    parser = Outside()
    parser.feed(text)
    assert not parser.bad
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", text)
    assert "url(" not in text and "@import" not in text
    for finding in diagnosis.findings:
        assert finding.code in text


def test_notebook(tmp_path: Path) -> None:
    diagnosis = run(load("runtime-switched-off"), tmp_path)
    assert diagnosis._repr_html_() == fragment(diagnosis)
    assert "<svg" in fragment(diagnosis)


def test_text_names_evidence_and_repair(tmp_path: Path) -> None:
    diagnosis = run(load("seed-kimi-layers0-eagle"), tmp_path)
    text = re.sub(r"\x1b\[[0-9;]*m", "", rendered(diagnosis))
    for words in ("names.dropped", "layers.0.self_attn.q_proj.weight", "capture.algorithm", "Observed: dead"):
        assert words in text
    assert "Hidden until E3L-N01 is repaired" in text
    assert diagnosis.repair_order[0] == "E3L-N01"


def test_hostile_names_never_reach_terminal_or_html(tmp_path: Path) -> None:
    case = without_log(load("names-automodel-prefix"))
    case["drafter"]["edits"]["rename"] = {"layers.0.*": f"{HOSTILE}.layers.0.*"}
    case["drafter"]["config"]["architectures"] = [f"Foo{HOSTILE}"]
    case["drafter"]["config"]["torch_dtype"] = HOSTILE
    diagnosis = run(case, tmp_path)
    assert {"names.dropped", "head-kind.architecture"} <= {finding.fault for finding in diagnosis.findings}
    text = rendered(diagnosis)
    assert "\x1b]" not in text and "\x07" not in text and "\u202e" not in text
    assert "[bold]x" in text
    html = page(diagnosis)
    parser = Outside()
    parser.feed(html)
    assert not parser.bad and "<img" not in html and "\u202e" not in html
    jsonschema.validate(diagnosis.as_json(), SCHEMA, cls=jsonschema.Draft202012Validator)
    assert "\x1b" not in json.dumps(diagnosis.as_json()) + json.dumps(sarif(diagnosis))


def test_nothing_is_an_error() -> None:
    from eagle3lab.errors import InputError

    with pytest.raises(InputError, match="nothing was given"):
        diagnose()
