"""Checkpoints of tensors that lie in memory: torch's, sharded or not, and NumPy's arrays."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _abi, _dtypes, _library
from .errors import Unsupported

Names = Mapping[Any, Any]
# By the names that torch, NumPy and ml_dtypes have in common.
_NUMBERS = {dtype.name: number for number, dtype in _dtypes.numbered()}
_ITEMSIZES = {dtype.name: dtype.itemsize for _, dtype in _dtypes.numbered()}


class Part(NamedTuple):
    """What of a tensor lies here: memory that `kept` keeps."""

    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    extents: tuple[int, ...]
    address: int
    kept: Any

    @property
    def is_whole(self) -> bool:
        return self.extents == self.shape


Parts = dict[tuple[str, "str | None"], Part]


def save(path: str | os.PathLike[str], tensors: Names, format: str, step: int | None,
         workers: int, group: Any) -> int:  # fmt: skip
    if not any(_is_sharded(tensor) for tensor in tensors.values()):
        parts = {_named(key): _part(key, tensor) for key, tensor in tensors.items()}
        return _written(path, parts, format, step, workers, None)
    from datetime import timedelta

    from .torch._world import connect, world_of

    world = world_of(group)
    parts = _of_first(world, world.together(lambda: _parts(tensors, world.size)))
    ranks = ctypes.c_void_p(connect(world, timedelta(minutes=10)))
    try:
        return _written(path, parts, format, step, workers, ranks)
    finally:
        _library.call("ebb_ranks_close", ranks)


def _written(path: str | os.PathLike[str], parts: Parts, format: str, step: int | None,
             workers: int, ranks: Any) -> int:  # fmt: skip
    saved = (_abi.Saved * len(parts))(*[_saved(*key, part) for key, part in parts.items()])
    request = _abi.Save(
        size=ctypes.sizeof(_abi.Save), format=format.encode(), path=os.fsencode(path),
        tensors=saved, tensor_count=len(parts), workers=workers,
        step=0 if step is None else step + 1,
    )  # fmt: skip
    written = ctypes.c_uint64()
    _library.call("ebb_checkpoint_save", ctypes.byref(request), ranks, ctypes.byref(written))
    return written.value


def _parts(tensors: Names, world: int) -> Parts:
    """This rank's."""
    for key, tensor in tensors.items():
        _check_rows(key, tensor, world)
    return {_named(key): _part(key, tensor) for key, tensor in tensors.items()}


def _of_first(world: Any, parts: Parts) -> Parts:
    """[C] With rank 0's elements of what each rank has whole, where another has others: each rank
    writes rows of it, and torch's savers write rank 0's."""
    mine = {key: _digest(part) for key, part in parts.items() if part.is_whole}
    every = world.gather(mine)
    differ = [key for key, digest in every[0].items()
              if any(one.get(key, digest) != digest for one in every)]  # fmt: skip
    if not differ:
        return parts
    said = world.of_first([bytes(_memory(parts[key])) for key in differ] if world.rank == 0 else 0)
    firsts = {key: ctypes.create_string_buffer(one, len(one)) for key, one in zip(differ, said)}
    return {key: part._replace(address=ctypes.addressof(firsts[key]), kept=firsts[key])
            if key in firsts else part for key, part in parts.items()}  # fmt: skip


def _digest(part: Part) -> bytes:
    return hashlib.blake2b(_memory(part), digest_size=16).digest()


def _memory(part: Part) -> memoryview:
    size = math.prod(part.extents) * _ITEMSIZES[part.dtype]
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(part.address))


def _named(key: Any) -> tuple[str, str | None]:
    """Its name, and its state where that is said."""
    if isinstance(key, str):
        return key, None
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(k, str) for k in key):
        return key
    raise TypeError(f"{key!r} is no name: 'layers.0.weight', or ('layers.0.weight', 'exp_avg')")


def _part(key: Any, tensor: Any) -> Part:
    part = _torch_part(key, tensor) if _is_torch(tensor) else _numpy_part(key, tensor)
    if part.dtype not in _NUMBERS:
        raise Unsupported(f"{key} is {part.dtype}, which no checkpoint has")
    return part


def _numpy_part(key: Any, tensor: Any) -> Part:
    import numpy

    if numpy.ma.is_masked(tensor):
        raise Unsupported(f"{key}: some elements are masked, which no checkpoint says",
                          hint="tensor.filled(value) has a number for those")  # fmt: skip
    array = numpy.ascontiguousarray(tensor)
    if array.dtype.hasobject or array.dtype.byteorder == ">":
        raise Unsupported(f"{key}: an array of {array.dtype} cannot be saved")
    shape = tuple(tensor.shape)  # a scalar's array has a dimension more
    return Part(array.dtype.name, shape, (0,) * len(shape), shape, array.ctypes.data, array)


def _torch_part(key: Any, tensor: Any) -> Part:
    from ._memory import why_not
    from .torch._placements import box_of, local

    mine = local(tensor.detach())
    if why := why_not(mine):
        raise Unsupported(f"{key} {why}, which cannot be saved")
    offsets, extents = box_of(tensor)
    mine = mine.to(device="cpu").resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return Part(name, tuple(tensor.shape), offsets, extents, mine.data_ptr(), mine)


def _check_rows(key: Any, tensor: Any, world: int) -> None:
    """What is neither whole on each rank nor rows over all of them, nobody has where it is to be
    written from."""
    if not _is_sharded(tensor):
        return
    cut = [one for one in tensor.placements if not one.is_replicate()]
    mesh = tensor.device_mesh
    rows = len(cut) == 1 and cut[0].is_shard(0) and mesh.ndim == 1 and mesh.size() == world
    if cut and not (rows and type(cut[0]).__name__ == "Shard"):
        raise Unsupported(
            f"{key} is {tuple(tensor.placements)} over {mesh}, on {world} ranks",
            hint="rows over all ranks, and what each rank has whole, are saved; others save"
            " with torch.distributed.checkpoint, which ckpt-convert reads",
        )


def _saved(name: str, state: str | None, part: Part) -> _abi.Saved:
    here = 0 not in part.extents
    numbers = ctypes.c_uint64 * len(part.shape)
    return _abi.Saved(
        size=ctypes.sizeof(_abi.Saved), name=name.encode(),
        state=None if state is None else state.encode(), shape=numbers(*part.shape),
        ndim=len(part.shape), dtype=_NUMBERS[part.dtype], offsets=numbers(*part.offsets),
        extents=numbers(*part.extents), data=part.address if here or 0 in part.shape else None,
    )  # fmt: skip


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _is_sharded(tensor: Any) -> bool:
    if not _is_torch(tensor):
        return False
    from .torch._placements import is_dtensor

    return is_dtensor(tensor)
