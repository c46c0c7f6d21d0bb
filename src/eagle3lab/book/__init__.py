"""The book: chapters run by papermill, their claims collected, the pages rendered with no network.

`claim` is what chapters use; `python -m eagle3lab.book` runs them and `python -m eagle3lab.book.render`
renders the executed notebooks. Importing this package imports neither papermill nor Sphinx.
"""

from eagle3lab.book.claims import Claim, ClaimFailed, claim

__all__ = ["Claim", "ClaimFailed", "claim"]
