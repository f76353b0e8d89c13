"""What is asked of an optimizer's class before its state is paged: what it keeps of a parameter,
and whether it steps each parameter as if it were alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer as _torchs

from ebb._signals import held_back
from ebb.errors import Unsupported

from ._structure import PLAIN, Structure, structure_of

_STEPS = 3  # by then state has the shape that it keeps


def found_structure(
    make: Any, shape: tuple[int, ...], strides: tuple[int, ...], gradients: tuple[int, ...],
    like: Tensor, name: str,
) -> Structure:  # fmt: skip
    """`make(params)`: an optimizer of the class. Of a parameter and its gradients with these
    strides. From shapes alone where the class looks at no number; else from steps that are made."""

    def ones(strides: tuple[int, ...]) -> Tensor:
        size = sum((extent - 1) * stride for extent, stride in zip(shape, strides)) + 1
        some = torch.ones(size, dtype=like.dtype, device=like.device)
        return some.as_strided(shape, strides)

    def found() -> Structure:
        return _structure_by_steps(make, ones(strides), lambda: ones(gradients), name)

    try:
        with FakeTensorMode():
            return found()
    except Unsupported:
        raise
    except Exception:  # whatever a class does that cannot be done without numbers
        with torch.random.fork_rng(devices=[]):
            return found()


def _structure_by_steps(
    make: Any, value: Tensor, gradient: Callable[[], Tensor], name: str
) -> Structure:
    param = torch.nn.Parameter(value)
    optimizer = make([param])
    seen: list[Structure] = []
    for _ in range(_STEPS):
        param.grad = gradient()
        step_alone(optimizer)
        seen.append(structure_of(optimizer.state[param], name))
    if any(one != seen[-1] for one in seen):
        raise Unsupported(
            f"{name}: its state is not the same from step to step; such state cannot be paged"
        )
    return seen[-1]


def step_alone(optimizer: torch.optim.Optimizer) -> None:
    """Without the hooks that are for the steps of all optimizers, of which this is none that
    anybody knows."""
    hooks: list[dict[Any, Any]] = [
        _torchs._global_optimizer_pre_hooks, _torchs._global_optimizer_post_hooks
    ]  # fmt: skip
    before = [dict(some) for some in hooks]
    try:
        for some in hooks:
            some.clear()
        optimizer.step()
    finally:
        with held_back():
            for some, they in zip(hooks, before):
                some.update(they)


def check_sparse(make: Any, shape: tuple[int, ...], gradient: Tensor, name: str) -> None:
    """Unsupported where the class makes sparse state of sparse gradients."""
    param = torch.nn.Parameter(torch.zeros(_small(shape), dtype=gradient.dtype, device="cpu"))
    param.grad = torch.ones_like(param.detach()).to_sparse(gradient.sparse_dim())
    optimizer = make([param])
    with torch.random.fork_rng(devices=[]):
        step_alone(optimizer)
    structure_of(optimizer.state[param], name)


def check_steps_alone(make: Any, kind: str, shapes: Iterable[tuple[int, ...]]) -> set[str]:
    """Unsupported where the class' step of a parameter depends on others', or it wants more than
    gradients, or keeps more than numbers of its groups outside of its state: two small parameters
    are stepped together, and each alone. Answers which of the group's numbers the steps change."""
    counted: set[str] = set()
    for shape in {_small(one) for one in shapes}:
        with torch.random.fork_rng(devices=[]):
            try:
                together, numbers = _stepped(make, shape, [[0, 1]])
                alone, _ = _stepped(make, shape, [[0], [1]])
                resumed, _ = _stepped(make, shape, [[0, 1]], anew=True)
            except Exception as why:
                raise Unsupported(
                    f"{kind} cannot be paged: a step of a parameter of shape {shape} with"
                    f" a gradient raises {type(why).__name__}: {why}"
                ) from why
        if not _same(together, resumed):
            raise Unsupported(
                f"{kind} cannot be paged: its steps need what it keeps outside of its parameters'"
                " states and its groups' numbers",
                hint="what it counts can be paged in self.state[p], or as a number of its group",
            )
        if not _same(together, alone):
            raise Unsupported(
                f"{kind} cannot be paged: its step of a parameter depends on the other"
                " parameters, which are not in memory with it"
            )
        counted |= numbers
    return counted


def _small(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(extent, 4) for extent in shape)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others))


def _stepped(
    make: Any, shape: tuple[int, ...], parted: list[list[int]], anew: bool = False
) -> tuple[list[Tensor], set[str]]:
    """Two parameters, the same each time, stepped by an optimizer for each of `parted`, or `anew`
    by another one in each step, as one that is resumed; which of their groups' numbers the steps
    changed."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed() goes to all devices
    drawn = [torch.randn(2, *shape, device="cpu") for _ in range(1 + _STEPS)]
    params = [torch.nn.Parameter(drawn[0][i].clone()) for i in range(2)]
    numbers: set[str] = set()
    for mine in parted:
        optimizer = make([params[i] for i in mine])
        group = optimizer.param_groups[0]
        others = {k: v for k, v in group.items() if k != "params" and type(v) not in PLAIN}
        before, others = _numbers(optimizer), copy.deepcopy(others)
        for gradients in drawn[1:]:
            for i in mine:
                params[i].grad = gradients[i].clone()
            if anew:
                optimizer = _resumed(make, optimizer, others)
            step_alone(optimizer)
        behind = _numbers(optimizer)
        numbers |= {k for k, v in behind.items() if k not in before or v != before[k]}
    return [param.detach() for param in params], numbers


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Of its group."""
    return {k: v for k, v in optimizer.param_groups[0].items() if type(v) in PLAIN}


def _resumed(
    make: Any, optimizer: torch.optim.Optimizer, others: dict[str, Any]
) -> torch.optim.Optimizer:
    """One that has what is paged: states, and numbers of the group, whose `others` are as at
    first."""
    made: torch.optim.Optimizer = make(optimizer.param_groups[0]["params"])
    made.state.update(optimizer.state)
    made.param_groups[0].update({**_numbers(optimizer), **copy.deepcopy(others)})
    return made
