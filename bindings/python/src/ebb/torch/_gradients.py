"""Gradients, as the engine takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._placements import alike
from ._said import Said


def gradients_of(
    names: Sequence[str], params: Sequence[Tensor], shapes: Sequence[torch.Size], said: Said
) -> list[Tensor | None]:
    """What this rank has of each, as it lies in memory; None: there is none. LayoutError or
    TypeError name what Ebb does not take. `shapes`: of parameters when the engine opened. One loop
    and few calls: each parameter pays for them in each step."""
    gradients: list[Tensor | None] = []
    strided = torch.strided
    for name, param, shape in zip(names, params, shapes):
        given = param.grad
        if given is None:
            gradients.append(None)
            continue
        gradient = alike(name, given, param, shape)
        if gradient.layout is not strided:
            raise TypeError(f"{name}: the gradient is {gradient.layout}, Ebb takes dense ones")
        if gradient.dtype is not param.dtype:
            raise TypeError(f"{name}: the gradient is {gradient.dtype}, and it {param.dtype}")
        if not gradient.is_contiguous() or gradient.is_neg():
            gradient = _copied(name, gradient, said)
        gradients.append(gradient)
    return gradients


def _copied(name: str, gradient: Tensor, said: Said) -> Tensor:
    what = "is a view that negates" if gradient.is_contiguous() else "is not contiguous"
    said.once("copied", f"{name}: its gradient {what}, and is copied in each step", 6)
    return gradient.resolve_neg().contiguous()
