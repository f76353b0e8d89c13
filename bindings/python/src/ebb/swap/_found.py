"""What is asked of an optimizer's class before its state is paged: what it keeps of a parameter,
and whether it steps each parameter as if it were alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ebb.errors import Unsupported

from ._structure import Structure, structure_of

_STEPS = 3  # by then state has the shape that it keeps


def found_structure(make: Any, shape: tuple[int, ...], like: Tensor, name: str) -> Structure:
    """`make(params)`: an optimizer of the class. From shapes alone where the class looks at no
    number; else from steps that are made."""
    try:
        with FakeTensorMode():
            return _structure_by_steps(make, torch.empty(shape, dtype=like.dtype), name)
    except DataDependentOutputException:
        with torch.random.fork_rng(devices=[]):
            return _structure_by_steps(make, torch.zeros(shape, dtype=like.dtype), name)


def _structure_by_steps(make: Any, value: Tensor, name: str) -> Structure:
    param = torch.nn.Parameter(value)
    optimizer = make([param])
    seen: list[Structure] = []
    for _ in range(_STEPS):
        param.grad = torch.ones_like(value)
        optimizer.step()
        seen.append(structure_of(optimizer.state[param], name))
    if any(one != seen[-1] for one in seen):
        raise Unsupported(
            f"{name}: its state is not the same from step to step; such state cannot be paged"
        )
    return seen[-1]


def check_steps_alone(make: Any, kind: type, shapes: Iterable[tuple[int, ...]]) -> None:
    """Unsupported where the class' step of a parameter depends on others', or it wants more than
    gradients: two small parameters are stepped together, and each alone."""
    for shape in {tuple(min(extent, 4) for extent in one) for one in shapes}:
        with torch.random.fork_rng(devices=[]):
            try:
                together, alone = _stepped(make, shape, [[0, 1]]), _stepped(make, shape, [[0], [1]])
            except Exception as why:
                raise Unsupported(
                    f"{kind.__name__} cannot be paged: a step of a parameter of shape {shape} with"
                    f" a gradient raises {type(why).__name__}: {why}"
                ) from why
        if not all(torch.equal(a, b) for a, b in zip(together, alone)):
            raise Unsupported(
                f"{kind.__name__} cannot be paged: its step of a parameter depends on the other"
                " parameters, which are not in memory with it"
            )


def _stepped(make: Any, shape: tuple[int, ...], parted: list[list[int]]) -> list[Tensor]:
    """Two parameters, the same each time, stepped by an optimizer for each of `parted`."""
    torch.manual_seed(1)
    drawn = [torch.randn(2, *shape) for _ in range(1 + _STEPS)]
    params = [torch.nn.Parameter(drawn[0][i].clone()) for i in range(2)]
    for mine in parted:
        optimizer = make([params[i] for i in mine])
        for gradients in drawn[1:]:
            for i in mine:
                params[i].grad = gradients[i].clone()
            optimizer.step()
    return [param.detach() for param in params]
