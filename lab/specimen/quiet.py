"""Other libraries' progress bars and notes, kept out of this project's own output."""

from __future__ import annotations

import warnings


def quiet() -> None:
    """Silence the progress bars of transformers, and the warning that tqdm gives in a notebook without widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import tqdm.auto  # noqa: F401  (warns once, on its first import)
        from transformers.utils import logging

    logging.disable_progress_bar()
