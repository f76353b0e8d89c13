"""Tensors of torch whose elements lie in memory, as reading and writing want them."""

from __future__ import annotations

import torch
from torch import Tensor


def why_not(tensor: Tensor) -> str:
    """Why its elements do not, for people; "" where they do. Of a DTensor: its local part's."""
    if tensor.is_meta:
        return "lies on the device meta"
    if tensor.is_nested:
        return "is a nested tensor"
    if tensor.layout is not torch.strided:
        return f"is a tensor of {tensor.layout}"
    if tensor.numel() and not tensor.data_ptr():
        return f"is a {type(tensor).__name__}, which is made of other tensors"
    return ""


def is_plain(tensor: Tensor) -> bool:
    """Whether memory holds the elements as they are: row by row, not to be conjugated or negated
    when they are read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
