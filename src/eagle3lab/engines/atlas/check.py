"""`python -m eagle3lab.engines.atlas.check`: the variants against every release's own code, archive by archive.

Every name is put to each class's own `load_weights`, every config to its own constructors, on stand-ins.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from eagle3lab.engines.atlas import sdists, wheels
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.extract.model import ReleaseFacts
from eagle3lab.engines.extract.syntax import Syntax, UnreadableError
from eagle3lab.engines.extract.tree import open_source
from eagle3lab.engines.facts import DrafterRules
from eagle3lab.engines.proof.constructors import differences
from eagle3lab.engines.proof.cut_out import constructors
from eagle3lab.engines.proof.loaders import Loader, disagreements, settings_of
from eagle3lab.engines.proof.names import EDGES, families, generated, offers
from eagle3lab.engines.proof.variant import Surroundings, engine_with
from eagle3lab.engines.release import releases
from eagle3lab.errors import Eagle3labError


def main() -> int:
    """Check every archive in the folder; 1 if a release disagrees or cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.atlas.check", description=__doc__)
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="folder the archives are kept in"
    )
    parser.add_argument("--generated", type=int, default=3000, help="names put together at random")
    options = parser.parse_args()
    names = [*families(), *generated(options.generated)]
    failed = 0
    for kind, cached in (("sglang", wheels.cached), ("vllm", sdists.cached)):
        found = cached(options.wheels)
        for release in releases(kind):
            said = ["no archive"]
            if release in found:
                said = []
                asked = [*(EDGES if kind == "vllm" else ()), *names]
                for drafter, words, agrees in _classes(found[release], release_facts(release, kind), asked):
                    said.append(f"{drafter} {words}")
                    failed += not agrees
            print(f"{kind}=={release}: {'; '.join(said)}", flush=True)
    return 1 if failed else 0


def _classes(archive: Path, facts: ReleaseFacts, names: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Every drafter class of a release: its name, what came of the comparison, whether all agrees."""
    try:
        syntax = Syntax(open_source(archive))
    except Eagle3labError as error:
        yield "the archive", str(error), False
        return
    for rules in facts.classes():
        yield rules.drafter.name, *_compared(syntax, facts, rules, names)
    for drafter, reason in facts.undescribed.items():
        yield drafter, f"not described: {reason}", True


def _compared(syntax: Syntax, facts: ReleaseFacts, rules: DrafterRules, names: list[str]) -> tuple[str, bool]:
    module = syntax.module(rules.drafter.module.removeprefix(syntax.tree.package).replace(".", "/") + ".py")
    cls = module.classes.get(rules.drafter.name) if module else None
    if cls is None or facts.vocabulary is None:
        return "is not there", False
    asked = offers(names, [pair.parts for pair in rules.names.joined])
    around = Surroundings(facts.kind, facts.vocabulary, bool(facts.config_checked))
    try:
        (wrong,) = disagreements(Loader(syntax, cls), [rules], asked)
        (unlike,) = differences(constructors(syntax, cls), [engine_with(rules, around)])
    except (UnreadableError, Eagle3labError) as error:
        return str(error), False
    if wrong or unlike:
        first = [str(wrong[0])] if wrong else unlike
        return f"{len(wrong)} names and {len(unlike)} configs disagree, first {first[0]}", False
    return f"{len(settings_of(facts.kind, rules)) * len(asked)} agree", True


if __name__ == "__main__":
    raise SystemExit(main())
