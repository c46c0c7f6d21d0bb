"""The facts of the two installed releases as they were gathered by hand: what reading the source must come to.

One TOML file a release in the folder `facts_by_hand`; each fact has the line of the release that says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

from eagle3lab.engines.facts import (
    Acceptance,
    Capture,
    ConstructionRule,
    DrafterClass,
    EngineFacts,
    FromTarget,
    NameRules,
    Parameter,
    ParameterKind,
    Rename,
    Size,
    Source,
    Special,
    Stacked,
    Switch,
    VocabularyPadding,
)

_FOLDER = Path(__file__).with_name("facts_by_hand")


class _Table:
    """A TOML table that must hold what is asked for, and nothing that is not asked for."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = dict(values)
        self._place = place

    def take(self, key: str, kind: type, default: Any = ...) -> Any:
        value = self._values.pop(key, default)
        if value is ...:
            raise ValueError(f"{self._place}: {key} is missing")
        if value is not default and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise ValueError(f"{self._place}: {key} is not a {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        return cast(str, self.take(key, str))

    def optional_text(self, key: str) -> str | None:
        return cast("str | None", self.take(key, str, None))

    def texts(self, key: str, default: Any = ()) -> tuple[Any, ...]:
        return tuple(self.take(key, list, default))

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict), f"{self._place} [{key}]")

    def tables(self, key: str) -> list[_Table]:
        entries = self.take(key, list)
        return [_Table(entry, f"{self._place} [[{key}]] {number}") for number, entry in enumerate(entries, 1)]

    def named(self, key: str) -> dict[str, _Table]:
        entries = self.take(key, dict)
        return {name: _Table(entry, f"{self._place} [{key}.{name}]") for name, entry in entries.items()}

    def source(self) -> Source:
        table = self.table("source")
        source = Source(table.text("file"), table.take("line", int), table.text("text"))
        table.close()
        return source

    def close(self) -> None:
        if self._values:
            raise ValueError(f"{self._place}: unknown key {min(self._values)}")


def facts_by_hand(release: str) -> EngineFacts:
    """The facts of one release.

    Raises:
        ValueError: The file does not hold what it should.
    """
    kind = "sglang"
    file = _FOLDER / f"{kind}-{release}.toml"
    table = _Table(tomllib.loads(file.read_text(encoding="utf-8")), file.name)
    if (table.text("kind"), table.text("release")) != (kind, release):
        raise ValueError(f"{file.name}: describes another release than its name says")
    short, classes = table.table("short_tensors"), table.table("config_classes")
    facts = EngineFacts(
        kind=kind,
        release=release,
        drafter=_drafter(table.table("drafter")),
        names=_names(table.table("loader")),
        sizes=MappingProxyType({name: _size(name, entry) for name, entry in table.named("sizes").items()}),
        switches=MappingProxyType(
            {name: _switch(name, entry) for name, entry in table.named("switches").items()}
        ),
        parameters=tuple(_parameter(entry) for entry in table.tables("parameters")),
        config_checked=classes.take("checked", bool),
        config_source=classes.source(),
        construction=tuple(_construction(entry) for entry in table.tables("construction")),
        vocabulary=_vocabulary(table.table("vocabulary")),
        zero_filled=short.texts("zero_filled"),
        zero_filled_source=short.source(),
        from_target=tuple(_from_target(entry) for entry in table.named("from_target").values()),
        capture=_capture(table.table("capture")),
        acceptance=_acceptance(table.table("acceptance")),
    )
    short.close()
    classes.close()
    table.close()
    conditions = [*(entry.when for entry in facts.parameters), *(rule.when for rule in facts.construction)]
    for condition in conditions:
        if condition is not None and condition not in facts.switches:
            raise ValueError(f"{file.name}: unknown switch {condition}")
    return facts


def _drafter(table: _Table) -> DrafterClass:
    drafter = DrafterClass(
        table.text("class"),
        table.text("module"),
        table.texts("architectures"),
        table.texts("other_architectures"),
        table.source(),
    )
    table.close()
    return drafter


def _names(table: _Table) -> NameRules:
    renames = [Rename(t.text("old"), t.text("new"), t.source()) for t in table.tables("renames")]
    special = []
    for entry in table.tables("special"):
        effect = entry.text("effect")
        if effect not in ("hot_token_id", "skipped"):
            raise ValueError(f"unknown effect {effect}")
        special.append(Special(entry.text("contains"), cast(Any, effect), entry.source()))
    stacked = [
        Stacked(t.text("part"), t.text("fused"), t.take("shard", cast(type, str | int)), t.source())
        for t in table.tables("stacked")
    ]
    lookup = table.table("lookup")
    rules = NameRules(
        lookup.text("unmatched"),
        lookup.source(),
        tuple(renames),
        tuple(special),
        tuple(stacked),
        lookup.texts("prefixes"),
    )
    lookup.close()
    table.close()
    return rules


def _size(name: str, table: _Table) -> Size:
    size = Size(
        name,
        table.source(),
        MappingProxyType(table.take("model_types", dict, {})),
        table.optional_text("present"),
        table.texts("first"),
        table.optional_text("fallback"),
        table.take("default", int, None),
    )
    table.close()
    return size


def _switch(name: str, table: _Table) -> Switch:
    switch = Switch(name, table.source(), table.texts("any"), table.texts("none"), table.texts("present"))
    table.close()
    return switch


def _parameter(table: _Table) -> Parameter:
    kind = table.text("kind")
    if kind not in get_args(ParameterKind):
        raise ValueError(f"unknown kind of parameter {kind}")
    columns = table.texts("columns")
    parameter = Parameter(
        table.text("name"),
        cast(ParameterKind, kind),
        table.source(),
        table.texts("rows"),
        columns,
        table.texts("later_columns", list(columns)),
        table.optional_text("when"),
    )
    table.close()
    return parameter


def _construction(table: _Table) -> ConstructionRule:
    exception = table.text("exception")
    rule = ConstructionRule(
        table.text("rule"),
        exception,
        table.source(),
        table.text("message"),
        table.optional_text("size"),
        table.texts("allowed"),
        table.optional_text("when"),
        checked_config=exception == "StrictDataclassFieldValidationError",
    )
    table.close()
    return rule


def _vocabulary(table: _Table) -> VocabularyPadding:
    padding = VocabularyPadding(table.take("padding", int), table.take("grows_with_tp", bool), table.source())
    table.close()
    return padding


def _from_target(table: _Table) -> FromTarget:
    replaced = FromTarget(
        table.text("parameter"),
        table.source(),
        table.texts("unless_differs"),
        table.optional_text("when_null"),
    )
    table.close()
    return replaced


def _capture(table: _Table) -> Capture:
    capture = Capture(
        table.texts("default_layers"), table.texts("ids_from"), table.take("shift", int), table.source()
    )
    table.close()
    return capture


def _acceptance(table: _Table) -> Acceptance:
    length, rate = table.table("length"), table.table("rate")
    acceptance = Acceptance(
        length.text("formula"), length.source(), rate.text("formula"), rate.text("key"), rate.source()
    )
    for part in (length, rate, table):
        part.close()
    return acceptance
