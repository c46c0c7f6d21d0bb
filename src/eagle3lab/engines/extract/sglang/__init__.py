"""The facts of an SGLang release read from its source: as text and syntax tree, never imported."""
