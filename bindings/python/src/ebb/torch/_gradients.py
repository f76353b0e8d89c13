"""A parameter's gradient, as the engine takes it."""

from __future__ import annotations

import torch
from torch import Tensor

from ._placements import alike
from ._said import Said


def gradient_of(name: str, param: Tensor, shape: torch.Size, said: Said) -> Tensor | None:
    """What this rank has of it, as it lies in memory; None: there is none. LayoutError or TypeError
    name what Ebb does not take. `shape`: the parameter's when the engine opened."""
    given = param.grad
    if given is None:
        return None
    gradient = alike(name, given, param, shape)
    if gradient.layout is not torch.strided:
        raise TypeError(f"{name}: the gradient is {gradient.layout}, Ebb takes dense ones")
    if gradient.dtype is not param.dtype:
        raise TypeError(f"{name}: the gradient is {gradient.dtype}, and it {param.dtype}")
    contiguous = gradient.is_contiguous()
    if contiguous and not gradient.is_neg():
        return gradient
    what = "is a view that negates" if contiguous else "is not contiguous"
    said.once("copied", f"{name}: its gradient {what}, and is copied in each step")
    return gradient.resolve_neg().contiguous()
