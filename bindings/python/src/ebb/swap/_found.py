"""What is asked of an optimizer's class before its state is paged: what it keeps of a parameter,
and whether it steps each parameter as if it were alone."""

from __future__ import annotations

from collections import deque
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
                together, numbers, kept = _stepped(make, shape, [[0, 1]])
                alone, _, _ = _stepped(make, shape, [[0], [1]])
            except Exception as why:
                raise Unsupported(
                    f"{kind} cannot be paged: a step of a parameter of shape {shape} with"
                    f" a gradient raises {type(why).__name__}: {why}"
                ) from why
        if kept:
            raise Unsupported(
                f"{kind} cannot be paged: its steps change {', '.join(kept)}, which are"
                " part of no parameter's state",
                hint="what it counts can be paged in self.state[p], or as a number of its group",
            )
        if not all(torch.equal(a, b) for a, b in zip(together, alone)):
            raise Unsupported(
                f"{kind} cannot be paged: its step of a parameter depends on the other"
                " parameters, which are not in memory with it"
            )
        counted |= numbers
    return counted


def _small(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(extent, 4) for extent in shape)


def _stepped(
    make: Any, shape: tuple[int, ...], parted: list[list[int]]
) -> tuple[list[Tensor], set[str], list[str]]:
    """Two parameters, the same each time, stepped by an optimizer for each of `parted`; which of
    their groups' numbers the steps changed, and what else beside state."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed() goes to all devices
    drawn = [torch.randn(2, *shape, device="cpu") for _ in range(1 + _STEPS)]
    params = [torch.nn.Parameter(drawn[0][i].clone()) for i in range(2)]
    numbers: set[str] = set()
    others: list[str] = []
    for mine in parted:
        optimizer = make([params[i] for i in mine])
        before = _numbers(optimizer)
        for step, gradients in enumerate(drawn[1:]):
            for i in mine:
                params[i].grad = gradients[i].clone()
            step_alone(optimizer)
            if step == 0:  # what the first one finds out, any instance does
                once = _others(optimizer)
        numbers |= set(_changed(before, _numbers(optimizer)))
        others += _changed(once, _others(optimizer))
    return [param.detach() for param in params], numbers, others


def _changed(before: dict[str, Any], behind: dict[str, Any]) -> list[str]:
    return [k for k, v in behind.items() if k not in before or v != before[k]]


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Of its group."""
    return {k: v for k, v in optimizer.param_groups[0].items() if type(v) in PLAIN}


def _others(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What it has beside its state and numbers of its group, as text, by name."""
    group = optimizer.param_groups[0]
    torchs = vars(torch.optim.SGD(group["params"]))
    known = [*group["params"], optimizer.state, optimizer.param_groups, optimizer.defaults]
    own = {f"self.{k}": v for k, v in vars(optimizer).items() if k not in torchs}
    own |= {f"group[{k!r}]": v for k, v in group.items() if type(v) not in PLAIN and k != "params"}
    return {k: _as_text(v, {id(one) for one in known}) for k, v in own.items()}


def _as_text(value: Any, seen: set[int]) -> str:
    if id(value) in seen:
        return ""
    if isinstance(value, Tensor):
        return repr(value.tolist() if value.layout is torch.strided else value)
    if isinstance(value, (list, tuple, set, deque)):
        return str([_as_text(one, seen | {id(value)}) for one in value])
    if isinstance(value, dict):
        return _as_text([one for item in value.items() for one in item], seen | {id(value)})
    if hasattr(value, "__dict__") and not callable(value):
        return _as_text(vars(value), seen | {id(value)})
    return repr(value)
