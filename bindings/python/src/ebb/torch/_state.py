"""State as tensors: backed by a file that has no name, so that a state dict of any size takes no
memory that the system could not write back; and tensors of other runs as what this rank holds."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ebb.errors import Error, IoError, LayoutError, NoSpace

from ._placements import box_of, is_dtensor, local

STATES = {"muon": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}


def file_backed(
    shape: tuple[int, ...], directory: Path, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A tensor in a file of the directory's disk, which goes with its last tensor. Its blocks are
    allocated now: a disk that fills up later would end the process."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    try:
        storage = _storage(directory, nbytes)
    except OSError as error:
        raise _no_file(error, nbytes, directory) from error
    tensor = torch.empty(0, dtype=dtype, device="cpu")  # whatever the default device is
    tensor.set_(storage, 0, shape)  # type: ignore[call-overload]
    return tensor


def _storage(directory: Path, nbytes: int) -> Any:
    file = _nameless(directory)
    try:
        os.posix_fallocate(file, 0, nbytes)
        path = f"/proc/self/fd/{file}"
        return torch.UntypedStorage.from_file(path, shared=True, nbytes=nbytes)
    finally:
        os.close(file)


def _no_file(error: OSError, nbytes: int, directory: Path) -> Error:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (NoSpace if full else IoError)(
        f"{directory}: no file of {nbytes} bytes for a tensor of a state dict:"
        f" {error.strerror or error}",
        hint="state_dict() needs as much disk there as the state has bytes, until its tensors go;"
        " checkpoint='reference' and export() to another disk do not",
        file=str(directory),
    )


def _nameless(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # a file system that has no such files
        file, name = tempfile.mkstemp(prefix="state-dict-", dir=directory)
        os.unlink(name)
        return file


def counted(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same tensor, and one without elements that counts with it what is written to it, and
    does not keep its memory."""
    counter = torch.empty(0, dtype=tensor.dtype, device="cpu")
    same = counter.view(0)  # which has its base's count
    same.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return same, counter


def like_parameter(mine: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """What this rank has of a parameter's state, as a tensor placed as the parameter is, in the
    host's memory."""
    if not is_dtensor(param):
        return mine
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    # DTensor.from_local() would copy it to the mesh's device.
    meta = TensorMeta(param.shape, param.stride(), mine.dtype)
    mesh, placements = param.device_mesh, tuple(param.placements)  # type: ignore[attr-defined]
    placed = DTensorSpec(mesh, placements, tensor_meta=meta)
    return DTensor(mine, placed, requires_grad=False)  # type: ignore[no-untyped-call]


def check_shape(name: str, given: torch.Tensor, param: torch.Tensor) -> None:
    if tuple(given.shape) != tuple(param.shape):
        raise LayoutError(
            f"{name}: the state dict has {tuple(given.shape)}, and the parameter is"
            f" {tuple(param.shape)}",
            hint="states go with parameters by their names: is it this model's?",
        )


def mine_of(
    given: torch.Tensor, param: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Of a state that a state dict has of a parameter, what this rank holds, contiguous."""
    if is_dtensor(given):
        mine = _placed_as(given, param)
    elif is_dtensor(param):
        offsets, extents = box_of(param)
        mine = given.detach()[tuple(slice(o, o + e) for o, e in zip(offsets, extents))]
    else:
        mine = given.detach()
    return mine.to(device="cpu", dtype=dtype).resolve_neg().contiguous()


def _placed_as(given: Any, param: Any) -> torch.Tensor:
    """[C] Of a DTensor, what this rank has of the parameter."""
    if not is_dtensor(param):
        whole: torch.Tensor = given.full_tensor()
        return whole
    mesh, placements = param.device_mesh, tuple(param.placements)
    if given.device_mesh != mesh or tuple(given.placements) != placements:
        given = given.redistribute(mesh, placements)
    return local(given)


class LazyState:
    """A parameter's state as torch has it, whose values are read when they are asked for. [C] Like
    a dict, and no Mapping: what takes those apart and makes them anew would read all of them."""

    def __init__(self, names: tuple[str, ...], read: Callable[[str], Any]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def keys(self) -> tuple[str, ...]:
        return self._names

    def values(self) -> Iterator[Any]:
        return (self[name] for name in self)

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((name, self[name]) for name in self)

    def __repr__(self) -> str:
        return f"<{', '.join(self._names)}: read when asked for>"
