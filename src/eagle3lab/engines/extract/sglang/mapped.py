"""The loader of the EAGLE-3 head with low-rank attention: names mapped first, then shards, pairs and the rest.

Each statement of its loop must be one of the forms known here, in this order; only the literals in them are free.
"""

from __future__ import annotations

import ast
import re

from eagle3lab.engines.extract.forms import UnreadableError, assigned_name, shards
from eagle3lab.engines.extract.sglang.loop import WARNED, LoopReading, open_loop
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, text_of
from eagle3lab.engines.facts import Joined, NameRules, Prefix, Rename, Special

_LOADED = """\
param = {parameters}[{target}]
weight_loader = getattr(param, 'weight_loader', default_weight_loader)
weight_loader(param, {weight}{shard})"""
_SHARDS = """\
for {loop} in {table}:
    if {part} not in {mapped}:
        continue
    {target} = {mapped}.replace({part}, {fused})
    if {target} not in {parameters}:
        continue
    {loaded}
    {handled} = True
    break"""
_PAIR = """\
if {first!r} in {mapped} or {second!r} in {mapped}:
    {kept}[{mapped}] = {weight}
    q_name = {mapped} if {first!r} in {mapped} else {mapped}.replace({second!r}, {first!r})
    kv_name = {mapped} if {second!r} in {mapped} else {mapped}.replace({first!r}, {second!r})
    if q_name in {kept} and kv_name in {kept}:
        fused_weight = torch.cat([{kept}[q_name], {kept}[kv_name]], dim=0)
        fused_name = q_name.replace({first!r}, {fused!r})
        if fused_name in {parameters}:
            {loaded}
        {kept}.pop(q_name)
        {kept}.pop(kv_name)
    continue"""


def is_mapped(function: ast.FunctionDef) -> bool:
    """Whether a `load_weights` maps names by a regular expression."""
    return any(called(node) == "sub" for node in ast.walk(function))


def read_mapped(syntax: Syntax, owner: ClassRef, function: ast.FunctionDef) -> NameRules:
    """The rules of such a loop.

    Raises:
        UnreadableError: A statement has another form.
    """
    reader = _Mapped(open_loop(owner, function))
    reader.read()
    return reader.rules()


class _Mapped:
    """Such a loop, read statement by statement."""

    def __init__(self, reading: LoopReading) -> None:
        self.reading = reading
        self.mapped = ""
        self.prefix: Prefix | None = None
        self.joined: list[Joined] = []
        self._rest = list(reading.body)

    def read(self) -> None:
        """Everything in its order."""
        while self._rest and isinstance(self._rest[0], ast.If):
            self._special(self._next())
        self._rename(self._next())
        self._prefix(self._next())
        self._shards(self._next(), self._next(), self._next())
        while self._rest and isinstance(self._rest[0], ast.If) and isinstance(self._rest[0].test, ast.BoolOp):
            self._pair(self._next())
        self._plain(self._next(), self._rest)

    def rules(self) -> NameRules:
        """What was read."""
        assert self.reading.lookup is not None
        prefixes, unmatched, source = self.reading.lookup
        return NameRules(
            tuple(self.reading.renames),
            tuple(self.reading.special),
            tuple(self.reading.stacked),
            prefixes,
            unmatched,
            source,
            own_prefix=self.prefix,
            special_first=True,
            missing_shard="starts again",
            joined=tuple(self.joined),
        )

    def _next(self) -> ast.stmt:
        if not self._rest:
            raise UnreadableError(
                "the loop ends too early", self.reading.module.source(self.reading.body[-1])
            )
        return self._rest.pop(0)

    def _special(self, node: ast.stmt) -> None:
        """`if name == "d2t" or name.endswith(".d2t"):` keep it, or `continue`."""
        reading = self.reading
        match = re.fullmatch(
            rf"if {reading.name} == '(\w+)' or {reading.name}\.endswith\('\.(\w+)'\):\n(.*)",
            ast.unparse(node),
            re.DOTALL,
        )
        if match is None or match[1] != match[2]:
            raise reading.fail("a condition on names is not understood", node)
        body = [line.strip() for line in match[3].splitlines()]
        if body not in (["continue"], [reading.offsets, "continue"]):
            raise reading.fail("what is done with a special tensor is not understood", node)
        source = reading.module.source(node)
        reading.special.append(
            Special(match[1], "skipped" if body == ["continue"] else "hot_token_id", source, whole=True)
        )

    def _rename(self, node: ast.stmt) -> None:
        """`mapped = re.sub("^old", "new", name)` with nothing but escaped dots in the pattern."""
        reading = self.reading
        value = node.value if isinstance(node, ast.Assign) else None
        self.mapped = assigned_name(node) or ""
        if not isinstance(value, ast.Call) or ast.unparse(value.func) != "re.sub" or len(value.args) != 3:
            raise reading.fail("names are mapped in a way that is not known", node)
        pattern, new = text_of(value.args[0]), text_of(value.args[1])
        old = re.sub(r"\\\.", ".", pattern.removeprefix("^")) if pattern and pattern.startswith("^") else None
        plain = old is not None and pattern == "^" + old.replace(".", "\\.") and "\\" not in (new or "\\")
        if not plain or new is None or old is None or ast.unparse(value.args[2]) != reading.name:
            raise reading.fail("names are mapped in a way that is not known", node)
        reading.renames.append(Rename(old, new, reading.module.source(node), at_start=True))

    def _prefix(self, node: ast.stmt) -> None:
        """`if not mapped.startswith("lm_head."): mapped = f"model.{mapped}"`."""
        mapped = self.mapped
        match = re.fullmatch(
            rf"if not {mapped}\.startswith\('([\w.]+)'\):\n    {mapped} = f'([\w.]+)\{{{mapped}\}}'",
            ast.unparse(node),
        )
        if match is None or not isinstance(node, ast.If):
            raise self.reading.fail("how a prefix is put before names is not understood", node)
        self.prefix = Prefix(match[2], match[1], self.reading.module.source(node.body[0]), at_start=True)

    def _shards(self, flag: ast.stmt, loop: ast.stmt, done: ast.stmt) -> None:
        """The loop over fused parameters; a shard without one is treated like any other name."""
        reading, handled = self.reading, assigned_name(flag)
        table = None
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 3:
            fused, part, shard = (ast.unparse(element) for element in loop.target.elts)
            known = _SHARDS.format(
                loop=f"{fused}, {part}, {shard}", table=ast.unparse(loop.iter), part=part, fused=fused,
                mapped=self.mapped,
                target="target_name", parameters=reading.parameters, handled=handled,
                loaded=self._loaded("target_name", reading.weight, f", {shard}", 4),
            )  # fmt: skip
            if ast.unparse(loop) == known:
                table = reading.tables.get(ast.unparse(loop.iter))
        as_known = (
            ast.unparse(flag) == f"{handled} = False" and ast.unparse(done) == f"if {handled}:\n    continue"
        )
        if not as_known or not isinstance(table, ast.List | ast.Tuple):
            raise reading.fail("a loop over shards is not understood", loop)
        reading.stacked += shards(reading.module, table)

    def _loaded(self, target: str, weight: str, shard: str, indent: int) -> str:
        text = _LOADED.format(parameters=self.reading.parameters, target=target, weight=weight, shard=shard)
        return text.replace("\n", "\n" + " " * indent)

    def _pair(self, node: ast.stmt) -> None:
        """Two tensors kept until both are there, then loaded as one."""
        text = ast.unparse(node)
        parts = re.match(rf"if '(\w+)' in {self.mapped} or '(\w+)' in {self.mapped}:\n    (\w+)\[", text)
        fused = re.search(r"fused_name = q_name\.replace\('\w+', '(\w+)'\)", text)
        if parts is not None and fused is not None:
            known = _PAIR.format(
                first=parts[1], second=parts[2], kept=parts[3], fused=fused[1], mapped=self.mapped,
                weight=self.reading.weight, parameters=self.reading.parameters,
                loaded=self._loaded("fused_name", "fused_weight", "", 12),
            )  # fmt: skip
            if text == known and ast.unparse(self.reading.tables.get(parts[3], node)) == "{}":
                source = self.reading.module.source(node)
                self.joined.append(Joined((parts[1], parts[2]), fused[1], source))
                return
        raise self.reading.fail("how two tensors are joined is not understood", node)

    def _plain(self, guard: ast.stmt, rest: list[ast.stmt]) -> None:
        """`if mapped not in params: warn; continue`, else loaded."""
        reading = self.reading
        asked = f"{self.mapped} not in {reading.parameters}"
        known = isinstance(guard, ast.If) and ast.unparse(guard.test) == asked and not guard.orelse
        loaded = self._loaded(self.mapped, reading.weight, "", 0)
        if not known or "\n".join(map(ast.unparse, rest)) != loaded or not isinstance(guard, ast.If):
            raise reading.fail("parameters are looked up in a way that is not known", guard)
        said = [called(node.value) for node in guard.body if isinstance(node, ast.Expr)]
        if said != ["warning"] or len(guard.body) != 2 or not isinstance(guard.body[1], ast.Continue):
            raise reading.fail("what happens to an unknown name is not understood", guard)
        reading.lookup = ("",), WARNED, reading.module.source(guard)
