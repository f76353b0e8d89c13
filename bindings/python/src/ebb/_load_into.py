"""Tensors of a checkpoint into tensors of torch: in place where they can be read there, else
through a few MiB of the host's memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _dtypes
from ._checkpoint import Checkpoint, Place, TensorRef
from ._memory import is_plain, why_not
from ._progress import Progress, Wanted
from .errors import LayoutError, Unsupported, UsageError

_STAGED_BYTES = 8 << 20  # of one piece that passes through the host's memory
_ROOM_BYTES = 24 << 20  # of those of one call; reading takes 36 MiB more at most
_ALIGNED = 64  # where each begins
_CALL_BYTES = 1 << 30  # how long Ctrl-C waits
_WRAPPERS = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class LoadReport:
    """How many tensors were read, in bytes of the checkpoint; names that only the model, or only
    the checkpoint has; how weights were found, for people."""

    tensors: int
    bytes: int
    missing: list[str]
    unexpected: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Target:
    """A box of a tensor, and where it goes: as large, on any device, of any layout."""

    ref: TensorRef
    offsets: Sequence[int]
    extents: Sequence[int]
    tensor: Tensor


@dataclass(frozen=True)
class _Piece:
    """What is read whole, of elements `kind`."""

    ref: TensorRef
    offsets: Sequence[int]
    extents: Sequence[int]
    kind: torch.dtype
    to: Tensor
    staged: bool  # through the host's memory on its way to `to`

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * self.kind.itemsize

    def place(self, tensor: Tensor) -> Place:
        return self.ref.place(self.offsets, self.extents, tensor.data_ptr(), self.nbytes)


class _Room:
    """The host's memory that pieces pass through, the same for every call."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory: Tensor | None = None

    def into(self, batch: list[_Piece]) -> list[Tensor]:
        """What each of them is read into."""
        found, first = [], 0
        for piece in batch:
            found.append(self._view(first, piece) if piece.staged else piece.to)
            first += _room_for(piece)
        return found

    def _view(self, first: int, piece: _Piece) -> Tensor:
        if self._memory is None:
            self._memory = torch.empty(
                _ROOM_BYTES, dtype=torch.uint8, device="cpu", pin_memory=self._pinned
            )
        there = self._memory[first : first + piece.nbytes]
        return there.view(piece.kind).view(tuple(piece.extents))


def load_model(
    weights: Checkpoint, model: Any, strict: bool, workers: int, progress: Wanted
) -> LoadReport:
    into, extra = _tensors_of(model)
    names = into.keys() | extra.keys()
    read = {id(tensor) for name, tensor in into.items() if name in weights}
    missing = [name for name, tensor in into.items() if id(tensor) not in read]
    missing += [name for name in extra if name not in weights]
    unexpected = [name for name in weights if name not in names]
    if strict and (missing or unexpected):
        raise LayoutError(
            f"{weights.path} and the model have not the same names: "
            + "; ".join(filter(None, [_some("the model alone has", missing),
                                      _some("the checkpoint alone has", unexpected)])),
            hint="strict=False reads what both have; ckpt-convert --weights --rename makes others",
        )
    # Of names that are tied the last decides, as in load_state_dict().
    targets = list({id(tensor): _target(weights[name], name, tensor)
                    for name, tensor in into.items() if name in weights}.values())  # fmt: skip
    nbytes = sum(math.prod(one.extents) * one.ref._dtype.itemsize for one in targets)
    with torch.no_grad(), Progress(progress, "reading", nbytes) as shown:
        load(weights, targets, workers, shown.add)
        told = [name for name in extra if name in weights]
        for name in told:
            extra[name].set_extra_state(weights[name].torch())
    return LoadReport(len(targets) + len(told), nbytes, missing, unexpected, weights.notes)


def _tensors_of(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Its parameters and buffers, and modules with a state of their own, by the names that
    weights() has."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    into: dict[str, Tensor] = {}
    extra: dict[str, Any] = {}
    stored = model.state_dict(keep_vars=True)
    for name, bare in zip(stored, _bare(list(stored))):
        tensor = stored[name]
        if not isinstance(tensor, Tensor):
            continue
        module, _, last = name.rpartition(".")
        if id(tensor) in own:
            into[bare] = tensor
        elif last == "_extra_state":
            extra[bare] = model.get_submodule(module)
        else:
            raise Unsupported(
                f"{name}: the model's state_dict() hands out a copy, and not the parameter or the"
                " buffer itself, as FSDP1 does",
                hint="fill the module before it is wrapped, or call"
                " model.load_state_dict({n: t.torch() for n, t in ck.weights().items()})",
            )
    return into, extra


def load(
    checkpoint: Checkpoint, targets: Sequence[Target], workers: int = 0,
    read: Callable[[int], object] = lambda nbytes: None,
) -> None:  # fmt: skip
    """Without gradients (torch.no_grad()). `read` hears of the bytes of each call."""
    room = _Room(pinned=any(target.tensor.is_cuda for target in targets))
    for batch in _batches(targets):
        into = room.into(batch)
        checkpoint.read_into([p.place(tensor) for p, tensor in zip(batch, into)], workers)
        for piece, tensor in zip(batch, into):
            if piece.staged:
                piece.to.copy_(tensor)
        read(sum(piece.nbytes for piece in batch))
    written = [target.tensor for target in targets]
    if written:
        torch.autograd.graph.increment_version(written)


def _batches(targets: Sequence[Target]) -> Iterator[list[_Piece]]:
    """What one call reads."""
    batch: list[_Piece] = []
    room = size = 0
    for target in targets:
        for piece in _pieces(target):
            staged = _room_for(piece)
            if batch and (room + staged > _ROOM_BYTES or size + piece.nbytes > _CALL_BYTES):
                yield batch
                batch, room, size = [], 0, 0
            batch.append(piece)
            room, size = room + staged, size + piece.nbytes
    yield batch


def _room_for(piece: _Piece) -> int:
    return -(-piece.nbytes // _ALIGNED) * _ALIGNED if piece.staged else 0


def _pieces(target: Target) -> Iterator[_Piece]:
    """Whole where it is read in place, else rows that fit."""
    ref, tensor = target.ref, target.tensor
    if tensor.numel() == 0:
        return
    kind = _dtypes.torch_type(_dtypes.dtype_of(ref._stored, ref.label))
    _check_types(ref, kind, tensor)
    if tensor.dtype == kind and tensor.device.type == "cpu" and is_plain(tensor):
        yield _Piece(ref, target.offsets, target.extents, kind, tensor, staged=False)
        return
    for box, part in _rows(target.offsets, target.extents, tensor, kind.itemsize):
        yield _Piece(ref, *box, kind, part, staged=True)


def _rows(
    offsets: Sequence[int], extents: Sequence[int], tensor: Tensor, itemsize: int
) -> Iterator[tuple[tuple[list[int], list[int]], Tensor]]:
    if not extents:
        yield ([], []), tensor
        return
    row = math.prod(extents[1:]) * itemsize
    if row > _STAGED_BYTES and len(extents) > 1:  # of more dimensions
        for i in range(extents[0]):
            for (more, lengths), part in _rows(offsets[1:], extents[1:], tensor[i], itemsize):
                yield ([offsets[0] + i, *more], [1, *lengths]), part.unsqueeze(0)
        return
    step = max(1, _STAGED_BYTES // max(1, row))
    for first in range(0, extents[0], step):
        count = min(step, extents[0] - first)
        box = [offsets[0] + first, *offsets[1:]], [count, *extents[1:]]
        yield box, tensor[first : first + count]


def _target(ref: TensorRef, name: str, tensor: Tensor) -> Target:
    """What this rank has of it."""
    if tuple(tensor.shape) != ref.shape:
        raise LayoutError(
            f"{name} is {list(tensor.shape)} in the model, and {list(ref.shape)} in"
            f" {ref._checkpoint.path}"
        )
    from .torch._placements import box_of, local

    offsets, extents = box_of(tensor)
    mine = local(tensor)
    if why := why_not(mine):
        hint = "model.to_empty(device=...) gives it memory" if mine.is_meta else ""
        raise UsageError(f"{name} {why}", hint=hint)
    return Target(ref, offsets, extents, mine.detach())


def _check_types(ref: TensorRef, kind: torch.dtype, tensor: Tensor) -> None:
    if tensor.dtype != kind and not (tensor.dtype.is_floating_point and kind.is_floating_point):
        raise LayoutError(f"{ref.label} is {ref.dtype}, and what it goes to is {tensor.dtype}")


def _bare(names: Sequence[str]) -> list[str]:
    """Without what wrappers put into them, as weights() has them (conversion/wrappers.h)."""
    bare = [".".join(w for w in name.split(".") if w not in _WRAPPERS) for name in names]
    while bare and all(name.startswith("module.") for name in bare):
        bare = [name.removeprefix("module.") for name in bare]
    return bare


def _some(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}"
