"""The specimen: a tiny real target with its EAGLE-3 drafter, and a target whose acceptance is known exactly.

Importing this package gives the folders only; training and decoding live in its modules and import torch,
transformers and speculators when they run. `python -m lab.specimen` remakes everything.
"""

from lab.specimen.paths import drafter_dir, permutation_dir, prompts_file, specimen_dir, target_dir

__all__ = ["drafter_dir", "permutation_dir", "prompts_file", "specimen_dir", "target_dir"]
