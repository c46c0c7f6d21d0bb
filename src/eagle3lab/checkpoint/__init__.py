"""What is on disk: files and shards, config dialects, tensor headers, values, statistics, and who wrote it.

`open_checkpoint` reads headers only and imports neither numpy nor torch. Values and
judgements are in `eagle3lab.checkpoint.statistics`, `.training_state` and `.provenance`.
"""

from eagle3lab.checkpoint.config import DrafterConfig
from eagle3lab.checkpoint.store import Checkpoint, FileSet, IgnoredFile, open_checkpoint
from eagle3lab.checkpoint.tensors import TensorInfo

__all__ = ["Checkpoint", "DrafterConfig", "FileSet", "IgnoredFile", "TensorInfo", "open_checkpoint"]
