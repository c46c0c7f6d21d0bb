"""Acceptance read right: any file to counts, each release's formulas, uncertainty, and what training promised.

A line goes through `lines` (wrappers off), `grammar` (what it says) and `log` (whose it is); `documents` searches JSON,
`metrics` reads pages, `fetch` asks a server, `observations` knows the names of figures, and `bulk` reads decode lines
by the million. `counts` is the one model for what was read, `formulas` says what a printed rate means, `statistics`
and `signature` judge it, `expectation` holds it against training, `report` puts an account together, and `render` and
`html` write it. `sources` opens whatever acceptance is read from, `run` holds the sources of one run against each
other, `comparison` one run against another, and `live` looks again and again; `tracebacks` says what a server died of.
Nothing here prints.

The words: *accept length* is tokens per verify step, bonus included, at least 1 (vLLM: mean acceptance length; the
EAGLE papers: average acceptance length, tau). *Accept rate* is accepted drafts over proposed drafts (vLLM: draft
acceptance rate); a rate that a release prints is always shown with its formula. *Position* is the 1-based draft step;
its *unconditional* share counts all verify steps (vLLM: per-position acceptance rate), its *conditional* share those
that accepted every position before it.
"""
