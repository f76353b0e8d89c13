"""What is looked at once, when an engine is to open: that its plan means what torch means on every
rank, and that copies are copies."""

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
