"""What a release's loader does with the names of tensors, typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from eagle3lab.engines.facts.source import Source


@dataclass(frozen=True, slots=True)
class Rename:
    """Every occurrence of `old` in a tensor's name becomes `new`.

    Attributes:
        old: The text.
        new: What takes its place.
        source: Where.
        at_start: Only at the beginning of the name.
    """

    old: str
    new: str
    source: Source
    at_start: bool = False

    def apply(self, name: str) -> str:
        """The name with it done."""
        if self.at_start:
            return self.new + name[len(self.old) :] if name.startswith(self.old) else name
        return name.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Special:
    """A tensor whose name contains `contains` is no weight.

    Attributes:
        contains: The substring.
        effect: "hot_token_id": it becomes the map from draft to target ids, tensor + arange(rows);
            "skipped": it is ignored.
        source: Where.
        when: The switch that must be on for the rule to hold; None for always.
        whole: Only if it is the last of the name's dotted parts, not anywhere in the name.
        unless: Not for names that contain this; None for no exception.
    """

    contains: str
    effect: Literal["hot_token_id", "skipped"]
    source: Source
    when: str | None = None
    whole: bool = False
    unless: str | None = None

    def matches(self, name: str) -> bool:
        """Whether the rule is about this name, its switch aside."""
        if self.unless is not None and self.unless in name:
            return False
        return name.rpartition(".")[2] == self.contains if self.whole else self.contains in name


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor whose name contains `part` is shard `shard` of the parameter with `fused` in its place."""

    part: str
    fused: str
    shard: str | int
    source: Source


@dataclass(frozen=True, slots=True)
class Joined:
    """Two tensors that are kept until both are there, then put one below the other and loaded as one.

    A tensor is one of them if its name contains one of `parts`; its partner is the one whose name has the other part
    in the same place. One without the other is forgotten when the loop ends.

    Attributes:
        parts: In the order in which they are stacked.
        fused: What takes the part's place in the name of the parameter.
        source: Where.
    """

    parts: tuple[str, str]
    fused: str
    source: Source


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name that matches `old` as a whole becomes `new`, whose groups are those of the regular expression."""

    old: str
    new: str
    source: Source


@dataclass(frozen=True, slots=True)
class Translation:
    """A table from the names of another format, looked up before anything else.

    Attributes:
        unless: Names that begin with one of these are left as they are.
        patterns: The first that matches gives the name.
        endings: Ends of names that are replaced afterwards.
        unmatched: What happens to a name that no pattern matches.
        source: Where.
    """

    unless: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    endings: tuple[tuple[str, str], ...]
    unmatched: str
    source: Source

    def apply(self, name: str) -> str | None:
        """The name in the other format; None if no pattern matches."""
        if name.startswith(self.unless):
            return name
        for pattern in self.patterns:
            match = re.fullmatch(pattern.old, name)
            if match is not None:
                name = match.expand(pattern.new)
                break
        else:
            return None
        for end, new in self.endings:
            if name.endswith(end):
                return name.removesuffix(end) + new
        return name


@dataclass(frozen=True, slots=True)
class Prefix:
    """Every name gets `text` in front, but not those that contain `unless`, or, with `at_start`, begin with it.

    An empty `unless` excludes none.
    """

    text: str
    unless: str
    source: Source
    at_start: bool = False

    def apply(self, name: str) -> str:
        """The name with the prefix where it gets one."""
        spared = name.startswith(self.unless) if self.at_start else self.unless in name
        return name if self.unless and spared else self.text + name


@dataclass(frozen=True, slots=True)
class NameRules:
    """What `load_weights` does with a tensor's name, in the order of the first attributes.

    Attributes:
        renames: Applied first, all of them, one after the other.
        special: The first that matches ends the matter.
        stacked: The first that matches decides the shard, and `missing_shard` what happens where that parameter does
            not exist.
        prefixes: Put before the name, in this order, until a parameter of that name exists.
        unmatched: What happens to a name that reaches no parameter.
        source: Where parameters are looked up.
        own_prefix: Put before names ahead of everything but the special ones; None for nothing.
        unmatched_shard: Type of the exception where a shard's fused parameter does not exist; None where shards
            are treated like other names.
        optional: Ends of names that are dropped without a message where they reach no parameter.
        unfollowed: Names that contain one of these are rewritten in a way that is not described here.
        special_first: Whether special names are looked for before anything is renamed.
        missing_shard: Where a shard's fused parameter does not exist: "ends" (the name is tried no further),
            "goes on" (the next shards and the plain lookup see the name with the fused part in it) or "starts again"
            (they see it as it was).
        joined: Pairs of tensors that are loaded as one; looked for after the shards.
        translation: The table that names go through first; None if there is none.
        layers: Where names of layers that the drafter does not have are skipped without a message; None if nowhere.
        optional_starts: Beginnings of names that are dropped without a message where they are no parameter.
        unmatched_name: Type of the exception where a name that is no shard reaches no parameter; None if none is
            raised.
        walked: Whether names are walked from module to module, as `eagle3lab.engines.facts.vllm` describes, and not
            looked up as a whole.
    """

    walked: ClassVar[bool] = False

    renames: tuple[Rename, ...]
    special: tuple[Special, ...]
    stacked: tuple[Stacked, ...]
    prefixes: tuple[str, ...]
    unmatched: str
    source: Source
    own_prefix: Prefix | None = None
    unmatched_shard: str | None = None
    optional: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()
    special_first: bool = False
    missing_shard: Literal["ends", "goes on", "starts again"] = "ends"
    joined: tuple[Joined, ...] = ()
    translation: Translation | None = None
    layers: Source | None = None
    unmatched_name: str | None = None
    optional_starts: tuple[str, ...] = ()

    @property
    def warns(self) -> bool:
        """Whether a name that reaches no parameter is mentioned in a warning."""
        return "warning" in self.unmatched
