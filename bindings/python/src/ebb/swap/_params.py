"""Parameters whose state is paged: where it lies, and how it comes into memory for a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ebb.errors import Unsupported
from ebb.torch._placements import box_of, is_dtensor, local
from ebb.torch._state import like_parameter

from ._loans import Loans
from ._space import Buffer, SwapSpace
from ._structure import Structure, state_of, values_of

WEIGHT = "param"  # a state of the store


@dataclass
class Param:
    """A parameter, and where its state lies: a buffer for all states of its shape, one for each
    other; `weight` for itself, `numbers` for what stays in memory: both are for snapshots."""

    name: str
    param: Tensor
    group: int
    structure: Structure
    buffers: list[Buffer]
    weight: Buffer
    numbers: Buffer | None = None
    kept: dict[str, Any] | None = None  # its small values; None: it was never stepped
    looked_at: bool = False  # a gradient of it, and how it lies

    def alike(self, state: str) -> bool:
        """Whether a state is of its shape, and lies where it does."""
        return self.structure.paged[state].shape == tuple(self.param.shape)

    def numbers_now(self) -> dict[str, Any]:
        """Copies of its small values."""
        kept = self.kept or {}
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in kept.items()}

    def take_numbers(self, values: dict[str, Any]) -> None:
        """Into the tensors that are there: new ones, among what a step makes, would keep a heap
        from shrinking."""
        if self.kept is None:
            self.kept = values
        for path, value in values.items():
            if isinstance(value, Tensor):
                self.kept[path].copy_(value)
            else:
                self.kept[path] = value

    @property
    def nbytes(self) -> int:
        return sum(
            torch.Size(buffer.shape).numel() * dtype.itemsize
            for buffer in self.buffers
            for dtype in buffer.states.values()
        )


def registered(
    space: SwapSpace, name: str, param: Tensor, group: int, structure: Structure
) -> Param:
    """With buffers for its state and itself."""
    shape = tuple(param.shape)
    rows = _rows(name, param)
    alike = {k: v.dtype for k, v in structure.paged.items() if v.shape == shape}
    others = {k: v for k, v in structure.paged.items() if v.shape != shape}
    if others and is_dtensor(param):
        raise Unsupported(
            f"{name}: its state {', '.join(others)} is not of its shape, and it is"
            f" {tuple(param.placements)}"  # type: ignore[attr-defined]
        )
    buffers = [space.register(name, shape=shape, states=alike, rows=rows)] if alike else []
    buffers += [
        space.register(name, shape=one.shape, states={state: one.dtype})
        for state, one in others.items()
    ]
    weight = space.register(name, shape=shape, states={WEIGHT: local(param).dtype}, rows=rows)
    return Param(name, param, group, structure, buffers, weight)


def check_can_be_paged(name: str, param: Tensor) -> None:
    mine = local(param)
    if is_traceable_wrapper_subclass(mine):
        raise Unsupported(f"{name} is a {type(mine).__name__}, which has no memory of its own")
    if 0 in param.shape:
        raise Unsupported(f"{name} has no elements: leave it out")
    if mine.is_meta:
        raise Unsupported(
            f"{name} is on the meta device", hint="model.to_empty() and its weights come first"
        )
    if is_dtensor(param) and not mine.is_contiguous():
        raise Unsupported(f"{name}: this rank's part of it is not contiguous")


def _rows(name: str, param: Tensor) -> slice | None:
    if not is_dtensor(param):
        return None
    from torch.distributed.tensor import Shard

    if tuple(param.placements) != (Shard(0),):  # type: ignore[attr-defined]
        raise Unsupported(
            f"{name} is {tuple(param.placements)}",  # type: ignore[attr-defined]
            hint="rows over all ranks, as fully_shard() has them, can be paged",
        )
    offsets, extents = box_of(param)
    return slice(offsets[0], offsets[0] + extents[0])


class Held:
    """State of parameters that are stepped, in memory, where the step wants it."""

    def __init__(self, loans: Loans, params: Sequence[Param]) -> None:
        self._here: dict[str, dict[str, Tensor]] = {}  # of the frames, by parameter and state
        for one in params:
            for buffer in one.buffers:
                self._here.setdefault(one.name, {}).update(loans.take(buffer))

    def state(self, one: Param) -> dict[str, Any]:
        """Of a parameter, as its optimizer wants it: what a step that fails leaves of it is not
        `one.kept`."""
        device = local(one.param).device
        paged = one.structure.paged
        there = {k: paged[k].placed(v, device) for k, v in self._here.get(one.name, {}).items()}
        placed = {
            k: like_parameter(v, one.param) if one.alike(k) else v for k, v in there.items()
        }
        return state_of(one.structure, {**placed, **one.numbers_now()})

    def take(self, one: Param, state: dict[str, Any]) -> dict[str, Any]:
        """What the step made of it, into the frames; the small values."""
        values = values_of(state, one.structure, one.name)
        for path, tensor in self._here.get(one.name, {}).items():
            made = local(values[path])
            if made.data_ptr() != tensor.data_ptr():
                tensor.copy_(made)
        return {path: values[path] for path in one.structure.kept}
