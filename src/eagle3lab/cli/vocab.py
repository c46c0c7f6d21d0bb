"""`eagle3lab vocab`: the draft-to-target token map, and what it covers of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from eagle3lab.cli.output import Format, print_json


def vocab(
    path: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    target: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(help="The target's folder: its vocabulary size and tokenizer.json."),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A text file (UTF-8); shows how much of it the draft vocabulary covers."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens proposed in one verify step.")] = 3,
    rows: Annotated[int, typer.Option(min=0, max=10_000, help="Rows shown from each end of the map.")] = 8,
    output: Annotated[Format, typer.Option("--format", help="How to print the report.")] = Format.text,
) -> None:
    """Say what the token map (d2t) holds and whether engines get the intended tokens from it."""
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.errors import InputError
    from eagle3lab.vocabulary.coverage import TOKENIZER_FILE, TargetTokenizer, measure_coverage, read_text
    from eagle3lab.vocabulary.source import read_token_map, target_vocab_size
    from eagle3lab.vocabulary.summary import as_json, as_text

    token_map = read_token_map(open_checkpoint(path), target_vocab_size(target) if target else None)
    folder = target or path
    tokenizer = TargetTokenizer(folder) if text or (folder / TOKENIZER_FILE).is_file() else None
    coverage = None
    if text and tokenizer:
        if not token_map.served_ids.size:
            raise InputError(
                "serves no tokens, so there is no coverage to measure",
                path=path,
                tensor=token_map.d2t.name if token_map.d2t else None,
                advice="Run the command without --text to see what is wrong with it.",
            )
        coverage = measure_coverage(tokenizer.encode(read_text(text)), token_map.served_ids, steps)
    show = tokenizer.show if tokenizer else None
    if output is Format.json:
        print_json(as_json(token_map, coverage, show, rows))
    else:
        typer.echo(as_text(token_map, coverage, show, rows), nl=False)
