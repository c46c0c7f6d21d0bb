"""`python -m eagle3lab.engines.atlas.check`: the simulator against every release's own loader, wheel by wheel."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from eagle3lab.engines.atlas import sdists, wheels
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.atlas.oracle import disagreements
from eagle3lab.engines.atlas.oracle_names import families, generated, layers_of, offers
from eagle3lab.engines.atlas.vllm_oracle import EDGES
from eagle3lab.engines.atlas.vllm_oracle import disagreements as vllm_disagreements
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.engines.extract.sglang.tree import open_tree
from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.engines.extract.vllm import VllmFacts
from eagle3lab.engines.extract.vllm.tree import open_vllm
from eagle3lab.engines.facts import NameRules, Parameter
from eagle3lab.engines.release import releases
from eagle3lab.errors import Eagle3labError


def main() -> int:
    """Check every wheel in the folder; 1 if a release disagrees or cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.atlas.check", description=__doc__)
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="folder the wheels are kept in"
    )
    parser.add_argument("--generated", type=int, default=3000, help="names put together at random")
    options = parser.parse_args()
    names = [*families(), *generated(options.generated)]
    found = wheels.cached(options.wheels)
    failed = 0
    for release in releases():
        said = ["no wheel"]
        if release in found:
            said = []
            for drafter, words, agree in _classes(found[release], release_facts(release), names):
                said.append(f"{drafter} {words}")
                failed += not agree
        print(f"{release}: {'; '.join(said)}", flush=True)
    failed += _check_vllm(options.wheels, [*EDGES, *names])
    return 1 if failed else 0


def _check_vllm(folder: Path, names: list[str]) -> int:
    """The same for vLLM's source distributions; how many classes disagree or cannot be checked."""
    found = sdists.cached(folder)
    failed = 0
    for release in releases("vllm"):
        facts = release_facts(release, "vllm")
        said = ["no source distribution"]
        if release in found and isinstance(facts, VllmFacts):
            syntax = Syntax(open_vllm(found[release]))
            said = []
            for rules in facts.classes():
                try:
                    wrong = vllm_disagreements(syntax, rules.drafter, rules.names, rules.parameters, names)
                except Eagle3labError as error:
                    said.append(f"{rules.drafter.name} {error}")
                    failed += 1
                    continue
                failed += bool(wrong)
                words = f"{len(wrong)} disagree, first {wrong[0]}" if wrong else f"{2 * len(names)} agree"
                said.append(f"{rules.drafter.name} {words}")
            said += [f"{drafter} not described: {why}" for drafter, why in facts.undescribed.items()]
        print(f"vllm=={release}: {'; '.join(said)}", flush=True)
    return failed


def _classes(wheel: Path, facts: ReleaseFacts, names: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Every described drafter class of a release: its name, what came of the comparison, whether all agrees."""
    try:
        syntax = Syntax(open_tree(wheel))
    except Eagle3labError as error:
        yield "the wheel", str(error), False
        return
    if facts.drafter is None or facts.names is None or facts.parameters is None:
        yield "the EAGLE-3 class", "could not be read", False
    else:
        rules = [rule.rule for rule in facts.construction]
        yield _compared(syntax, facts.drafter.name, facts.names, facts.parameters, rules, names)
    for other in facts.others:
        rules = [rule.rule for rule in other.construction]
        yield _compared(syntax, other.drafter.name, other.names, other.parameters, rules, names)
    for drafter, reason in facts.undescribed.items():
        yield drafter, f"not described: {reason}", True


def _compared(
    syntax: Syntax,
    drafter: str,
    rules: NameRules,
    parameters: tuple[Parameter, ...],
    construction: list[str],
    names: list[str],
) -> tuple[str, str, bool]:
    asked, layers = offers(names, rules), layers_of(construction)
    try:
        wrong = disagreements(syntax, rules, parameters, asked, drafter=drafter, layers=layers)
    except Eagle3labError as error:
        return drafter, str(error), False
    if wrong:
        return drafter, f"{len(wrong)} disagree, first {wrong[0]}", False
    return drafter, f"{2 * len(layers) * len(asked)} agree", True


if __name__ == "__main__":
    raise SystemExit(main())
