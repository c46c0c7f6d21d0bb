"""Every fault, measured: fault × release, by the reference and by real servers, one record a cell."""

from __future__ import annotations

from lab.matrix.records import Cell, Diagnosed, Matrix, matrix_file, pairs_file, read_matrix

__all__ = ["Cell", "Diagnosed", "Matrix", "matrix_file", "pairs_file", "read_matrix"]
