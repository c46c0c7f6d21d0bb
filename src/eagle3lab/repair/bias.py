"""A bias that a release always makes and no checkpoint has: zeros, which is no bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.checkpoint.tensors import DTYPE_BITS
from eagle3lab.repair.model import Change, TensorValue

if TYPE_CHECKING:
    from eagle3lab.repair.working_copy import WorkingCopy

_PARAMETER, _TENSOR, _WEIGHT = "model.fc.bias", "fc.bias", "fc.weight"


def repair_bias(copy: WorkingCopy) -> Change | None:
    """Add a bias of zeros to fc, where the release makes one that the config does not ask for.

    SGLang 0.4.6 to 0.4.8 build fc with a bias whatever the config says, and leave it at random values.
    """
    plan, weight = copy.simulate(), copy.find(_WEIGHT)
    random = any(p.name == _PARAMETER and p.status == "left as initialised" for p in plan.parameters)
    if not random or copy.config.bias or weight is None or len(weight.shape) != 2 or not weight.is_float:
        return None
    rows = weight.shape[0]
    value = TensorValue(weight.dtype, (rows,), bytes(rows * DTYPE_BITS[weight.dtype] // 8))
    edit = copy.replace_values(_TENSOR, value)
    return Change(
        "layer.bias",
        f"{_TENSOR} is added: {rows} zeros",
        (
            f"{copy.engine.spec} builds fc with a bias and leaves it at random values; the checkpoint has none",
            "config.json does not ask for a bias",
        ),
        "the head was trained without a bias, and zeros are no bias",
        (edit,),
    )
