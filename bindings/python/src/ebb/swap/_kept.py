"""What of an optimizer's state stays in memory, and how a snapshot keeps it: numbers of parameters
as tensors of one element, which whoever reads the store knows by the parameter's name; what is of
no parameter, as a blob."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, repeat
from typing import Any

from torch import Tensor

from ebb.errors import LayoutError
from ebb.torch._world import World

from ._loans import Loans
from ._params import Param
from ._space import SwapSpace

_BLOB = "ebb.swap.Paged"
_VERSION = 2

Numbers = dict[str, Any]


def register_numbers(space: SwapSpace, world: World, params: Iterable[Param]) -> None:
    """Behind all other buffers: what snapshots alone write lies together. All ranks have the same
    numbers, and the first keeps them."""
    for one in params:
        kinds = {path: kept.dtype for path, kept in one.structure.kept.items()}
        if kinds:
            mine = None if world.rank == 0 else slice(0, 0)
            one.numbers = space.register(one.name, shape=(), states=kinds, rows=mine)


def keep(space: SwapSpace, steps: int, params: Sequence[Param], counted: list[Numbers]) -> None:
    """For the next snapshot. counted: of groups, what the class itself changes."""
    for one in params:
        _write(space, one)
    by_name = sorted(params, key=lambda one: one.name)
    said = {
        "version": _VERSION,
        "steps": steps,
        "stepped": _runs(one.kept is not None for one in by_name),
        "group": _runs(one.group for one in by_name),
        "groups": counted,
    }
    space.set_blob(_BLOB, zlib.compress(json.dumps(said).encode()))


def resumed(
    space: SwapSpace, world: World, params: Sequence[Param], groups: int
) -> tuple[int, list[Numbers]] | None:
    """[C] Gives parameters the numbers of the snapshot that the store goes on with; answers its
    steps, and what groups counted. None: there was no snapshot yet."""
    blob = space.blob(_BLOB)
    if blob is None and space.step == 0:
        return None
    said = json.loads(zlib.decompress(blob)) if blob is not None else {}
    if said.get("version") != _VERSION:
        raise LayoutError(
            f"{space.store} is of step {space.step}, and has no counters of this version's"
            " ebb.swap.Paged",
            hint="name an empty directory, and load_state_dict() what the other one's state_dict()"
            " says",
        )
    by_name = sorted(params, key=lambda one: one.name)
    stepped = [one for one, was in zip(by_name, _unrolled(said["stepped"])) if was]
    numbers = world.gather(world.together(lambda: _numbers(space, stepped)))[0]
    for one, values in zip(stepped, numbers):
        one.kept = {path: kept.own(values[path]) for path, kept in one.structure.kept.items()}
    counted: dict[int, Numbers] = {}
    for one, before in zip(by_name, _unrolled(said["group"])):
        theirs = said["groups"][before]
        if counted.setdefault(one.group, theirs) != theirs:
            raise LayoutError(
                f"{one.name}: {space.store} has {theirs} of its group, and {counted[one.group]} of"
                " others that are in one group with it here",
                hint="parameters that were counted apart belong into groups of their own",
            )
    return int(said["steps"]), [counted.get(number, {}) for number in range(groups)]


def _write(space: SwapSpace, one: Param) -> None:
    """Numbers that are others than in the store. One that was never stepped has zeros."""
    if one.numbers is None or one.numbers.shape != ():
        return
    values = {path: 0 if one.kept is None else _number(one.kept[path])
              for path in one.structure.kept}  # fmt: skip
    with Loans(space) as loans:
        tensors = loans.take(one.numbers)
        loans.keep = any(tensors[path].item() != value for path, value in values.items())
        for path, value in values.items():
            tensors[path].fill_(value)


def _numbers(space: SwapSpace, params: Iterable[Param]) -> list[Numbers]:
    """Those that this rank keeps."""
    found: list[Numbers] = []
    for one in params:
        if one.numbers is None or one.numbers.shape != ():
            found.append({})
            continue
        with Loans(space) as loans:
            tensors = loans.take(one.numbers, modify=False)
            found.append({path: tensor.item() for path, tensor in tensors.items()})
    return found


def _runs(values: Iterable[Any]) -> list[Any]:
    return [[value, sum(1 for _ in run)] for value, run in groupby(values)]


def _unrolled(runs: Iterable[Any]) -> Iterable[Any]:
    return chain.from_iterable(repeat(value, count) for value, count in runs)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
