"""What is looked at once, when an engine is to open: that its plan means what torch means on every
rank, that copies are copies, and that nothing else is."""

from __future__ import annotations

from typing import Any

from ebb.errors import LayoutError

from . import _engine, _placements
from ._description import Named
from ._world import World


def check_placed(of: Named, model: _engine.Model, checksums: list[int], world: World) -> None:
    """[C] LayoutError names the parameter, ranks, and what they have. `checksums`: of what this
    rank holds of each."""
    boxes = [_placements.box_of(param) for param in of.params]
    wrong = _misplaced(of, model, boxes, world)
    told = world.gather((of.names, wrong, list(zip(boxes, checksums))))
    for rank, (names, said, _) in enumerate(told):
        if said is not None:
            raise LayoutError(said)
        if names != of.names:
            raise LayoutError(f"rank {rank} has other parameters than rank {world.rank}")
    for i, name in enumerate(of.names):
        _check_copies(name, [rows[i] for _, _, rows in told])


def check_apart(of: Named, masters: str) -> None:
    """LayoutError for parameters that share memory, where each has a master of its own: one step
    would write one over the other."""
    lies = sorted(
        (mine.data_ptr(), mine.nbytes, name)
        for name, mine in zip(of.names, of.mine())
        if mine.numel() and not (masters == "parameters" and mine.device.type == "cpu")
    )
    for (first, nbytes, name), (second, _, other) in zip(lies, lies[1:]):
        if first + nbytes > second:
            raise LayoutError(
                f"{name} and {other} share memory, and have masters of their own",
                hint="tie them as one parameter (head.weight = tok.weight), which"
                " named_parameters() has once; or leave one of them to no optimizer",
            )


def _misplaced(of: Named, model: _engine.Model, boxes: list[Any], world: World) -> str | None:
    for i, name in enumerate(of.names):
        try:
            ours = model.boxes(world.rank, world.size, i)
            _placements.check_boxes(name, world.rank, boxes[i], ours)
        except LayoutError as error:
            return str(error)
    return None


def _check_copies(name: str, told: list[tuple[Any, int]]) -> None:
    first: dict[Any, tuple[int, int]] = {}
    for rank, (box, checksum) in enumerate(told):
        other, seen = first.setdefault(box, (rank, checksum))
        if seen != checksum:
            raise LayoutError(
                f"{name}: ranks {other} and {rank} hold the same elements, with other numbers in"
                " them",
                hint="copies begin alike: broadcast rank 0's, or load one checkpoint on all",
            )
