"""Checkpoints of any format: what they hold, and tensors that are read when they are asked for."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import _abi, _dtypes, _library, _notebook, _tools, _values
from ._progress import Progress, Wanted
from .errors import Error, LayoutError, UsageError

Box = Sequence[slice]


class Chunk(NamedTuple):
    """A piece of a tensor as it is stored: `rank` wrote it; `offsets` and `extents` are its box."""

    file: str
    offset: int
    nbytes: int
    rank: int
    offsets: tuple[int, ...]
    extents: tuple[int, ...]


class Group(NamedTuple):
    """A parameter group of the optimizer."""

    optimizer: str
    settings: dict[str, Any]
    params: list[str]


class Place(NamedTuple):
    """Memory that a box of a tensor is to be read into, dense and row-major."""

    tensor: int
    offsets: Sequence[int]
    extents: Sequence[int]
    address: int
    nbytes: int


class TensorRef:
    """A tensor of a checkpoint, of which nothing has been read. Any thread.

    name: of the parameter. state: "param", "master", "momentum_buffer", ... key: the format's own
    name, None where it has none. shape. dtype: as torch calls it, "bfloat16".
    """

    __slots__ = (
        "__weakref__", "_checkpoint", "_number", "_stored", "key", "name", "shape", "state",
    )  # fmt: skip

    def __init__(self, checkpoint: Checkpoint, number: int, said: Sequence[Any]) -> None:
        self._checkpoint, self._number = checkpoint, number
        name, state, key, stored, shape, _ = said
        self.name: str = name
        self.state: str = sys.intern(state)
        self.key: str | None = name if key == name else key
        self.shape: tuple[int, ...] = tuple(shape)
        self._stored: str = sys.intern(stored)

    @property
    def label(self) -> str:
        return self.name if self.state == "param" else f"{self.name} ({self.state})"

    @property
    def dtype(self) -> str:
        return self._dtype.name

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self._dtype.itemsize

    @property
    def chunks(self) -> list[Chunk]:
        """Where it lies."""
        said = self._checkpoint._json("chunks", self._number)["chunks"]
        return [
            Chunk(file, offset, nbytes, rank, tuple(offsets), tuple(extents))
            for file, offset, nbytes, rank, offsets, extents in said
        ]

    def numpy(self, box: Box | None = None, out: Any = None) -> Any:
        """A new array, or `out`, filled: of the whole tensor, or of a box, a slice for each
        dimension. bfloat16 and float8 are ml_dtypes' where that is installed, else unsigned
        integers with the same bits."""
        import numpy

        offsets, extents = self._box(box)
        kind = _dtypes.numpy_type(self._dtype)
        if out is None:
            out = numpy.empty(extents, kind)
        elif out.dtype.itemsize != kind.itemsize or (
            out.dtype != kind and out.dtype != numpy.dtype(self._dtype.raw)
        ):
            raise UsageError(f"{self.label}: out is {out.dtype}, and the tensor {self.dtype}")
        elif not (out.flags.c_contiguous and out.flags.writeable):
            raise UsageError(f"{self.label}: out is not contiguous, or cannot be written")
        self._check_shape(tuple(out.shape), extents)
        self._checkpoint.read_into([self.place(offsets, extents, out.ctypes.data, out.nbytes)])
        return out

    def torch(self, box: Box | None = None, out: Any = None, device: Any = None) -> Any:
        """A new torch tensor, or `out`, filled: of the whole tensor, or of a box, a slice for each
        dimension."""
        import torch

        from ._load_into import Target, load
        from ._memory import why_not

        offsets, extents = self._box(box)
        if out is None:
            out = torch.empty(extents, dtype=_dtypes.torch_type(self._dtype), device=device)
        elif device is not None and torch.device(device) != out.device:
            raise UsageError(f"{self.label}: out lies on {out.device}, not on {device}")
        elif why := why_not(out):
            raise UsageError(
                f"{self.label}: out {why}",
                hint="of a DTensor: its to_local(), and the box of it; load_into() finds both",
            )
        self._check_shape(tuple(out.shape), extents)
        with torch.no_grad():
            load(self._checkpoint, [Target(self, offsets, extents, out)])
        return out

    def place(
        self, offsets: Sequence[int], extents: Sequence[int], address: int, nbytes: int
    ) -> Place:
        """For Checkpoint.read_into()."""
        return Place(self._number, offsets, extents, address, nbytes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(f"{self.label} is read from a disk: that is a copy")
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def __repr__(self) -> str:
        return f"<{self.label}: {self._stored} {list(self.shape)}>"

    @property
    def _dtype(self) -> _dtypes.DType:
        return _dtypes.dtype_of(self._stored, self.label)

    def _box(self, box: Box | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First index and extent by dimension."""
        if box is None:
            return (0,) * len(self.shape), self.shape
        if len(box) != len(self.shape) or not all(isinstance(one, slice) for one in box):
            raise UsageError(
                f"{self.label} has {len(self.shape)} dimensions: a box is as many slices"
            )
        ranges = [range(extent)[one] for one, extent in zip(box, self.shape)]
        if any(one.step != 1 for one in ranges):
            raise UsageError(f"{self.label}: slices of a box have no step")
        return tuple(one.start for one in ranges), tuple(len(one) for one in ranges)

    def _check_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != tuple(wanted):
            raise LayoutError(f"{self.label}: out is {list(found)}, and wanted {list(wanted)}")


class Checkpoint(Mapping[str, TensorRef]):
    """A checkpoint of any format that Ebb reads, whole, however many ranks wrote it. Its index
    alone is in memory; nothing that is stored is executed. A mapping of its names: `ck[name]` is a
    parameter's weights, in the most exact copy, `ck[name, "momentum_buffer"]` a state of it.

    format, producer; step: None where it is not known; world: ranks that wrote it; partition,
    notes: for people; states: names of them; tensors: all; groups: of parameters, with their
    settings; metadata: what else is stored, by key, as Python's own values; unread: what this
    version does not read.
    """

    def __init__(self, path: str | os.PathLike[str], handle: ctypes.c_void_p | None = None) -> None:
        """As open() says. `handle`: one that is open already."""
        self.path = os.fspath(path)
        self._handle = ctypes.c_void_p()
        if handle is None:
            handle = ctypes.c_void_p()
            _library.call("ebb_checkpoint_open", os.fsencode(self.path), ctypes.byref(handle))
        self._handle = handle
        about = self._json("about")
        self.format: str = about["format"]
        self.producer: str = about["producer"]
        self.step: int | None = about["step"]
        self.world: int = about["world"]
        self.partition: str = about["partition"]
        self.notes: list[str] = about["notes"]
        self.unread: list[list[str]] = about["unread"]
        self.groups = [
            Group(one["optimizer"], dict(one["settings"]), one["params"])
            for one in about["groups"]
        ]
        self.metadata: dict[str, Any] = {key: value for key, _, value in about["values"]}
        about["tensors"].reverse()  # each is let go of when its reference is there
        self.tensors = [
            TensorRef(self, number, about["tensors"].pop())
            for number in range(len(about["tensors"]))
        ]
        self._by_name: dict[str, dict[str, TensorRef]] = {}
        for tensor in self.tensors:
            self._by_name.setdefault(tensor.name, {}).setdefault(tensor.state, tensor)
        self.states = tuple(dict.fromkeys(tensor.state for tensor in self.tensors))

    def __getitem__(self, name: str | tuple[str, str]) -> TensorRef:
        if isinstance(name, tuple):
            return self._by_name[name[0]][name[1]]
        of = self._by_name.get(name)
        if of is None:
            raise KeyError(name)
        return of.get("master") or of.get("param") or next(iter(of.values()))

    def __contains__(self, name: object) -> bool:
        if isinstance(name, tuple):
            return len(name) == 2 and name[1] in self._by_name.get(name[0], {})
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def weights(self) -> Checkpoint:
        """The weights of its model, by the names that load_state_dict() takes: each parameter once,
        in its most exact copy, buffers, and what is tied under each of its names. Unsupported
        where no model is recognised, or not all of one is here."""
        handle = ctypes.c_void_p()
        _library.call("ebb_checkpoint_weights", self._opened, ctypes.byref(handle))
        return Checkpoint(self.path, handle)

    def load_into(
        self, model: Any, *, strict: bool = True, workers: int = 0, progress: Wanted = None
    ) -> Any:
        """Reads its weights straight into the parameters and buffers of a torch module, whatever
        the number of ranks: of DTensors each rank reads its part, and nothing travels. What has
        another floating type is converted. At most 64 MiB beside the model.

        strict: LayoutError where the model and the checkpoint have not the same names. progress:
        as in convert(), of the bytes that this rank reads. Answers an ebb.LoadReport."""
        from ._load_into import load_model

        return load_model(self.weights(), model, strict, workers, progress)

    def read_into(self, places: Sequence[Place], workers: int = 0) -> None:
        """Fills memory with boxes of tensors, in the order in which they lie in the files."""
        wanted = (_abi.Wanted * max(1, len(places)))()
        for one, place in zip(wanted, places):
            dimensions = max(1, len(place.extents))
            one.tensor = place.tensor
            one.offsets = (ctypes.c_uint64 * dimensions)(*place.offsets)
            one.extents = (ctypes.c_uint64 * dimensions)(*place.extents)
            one.into, one.bytes = place.address, place.nbytes
        _library.call("ebb_checkpoint_read", self._opened, wanted, len(places), workers)

    def verify(self) -> dict[str, Any]:
        """Reads all of it: coverage, checksums. What `ckpt-inspect --verify --json` says."""
        return _tools.inspect(self.path, "--verify")

    def diff(self, other: Checkpoint | str | os.PathLike[str]) -> dict[str, Any]:
        """Tensors bit for bit, steps, settings and values, across formats and numbers of ranks.
        What `ckpt-inspect --diff --json` says."""
        path = other.path if isinstance(other, Checkpoint) else os.fspath(other)
        return _tools.inspect(self.path, "--diff", path)

    def explain_resume(self, world: int) -> dict[str, Any]:
        """Whether the framework that wrote it resumes on so many ranks, and if not, why. What
        `ckpt-inspect --explain-resume --json` says."""
        return _tools.inspect(self.path, "--explain-resume", str(world))

    def convert(
        self, out: str | os.PathLike[str], to: str | None = None, *, world: int | None = None,
        weights: bool = False, arguments: Sequence[str] = (), progress: Wanted = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Writes it as a checkpoint of another format, or for another number of ranks, whole or not
        at all. `weights`: those of the model alone. `arguments`: more of ckpt-convert's. What
        `ckpt-convert --json` says.

        progress: a function of the bytes that are written and of all of them; what it raises stops
        the conversion, and the same call goes on. True, False: with tqdm's bar, without. None: with
        one where tqdm is installed and somebody looks. What is written is then read back."""
        more = [*(("--to", to) if to else ()), *(("--world-size", str(world)) if world else ())]
        more += ["--weights"] if weights else []
        with Progress(progress, "writing") as shown:
            return _tools.convert(self.path, os.fspath(out), *more, *arguments, progress=shown)

    def close(self) -> None:
        """Lets go of its files."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _library.call("ebb_checkpoint_close", handle)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and not sys.is_finalizing():
            _library.library().ebb_checkpoint_close(self._handle)

    def __repr__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        by = self.producer or self.format
        states = ", ".join(self.states)
        return f"<checkpoint of {by}{step}, {self.partition}: {len(self)} names with {states}>"

    def _repr_html_(self) -> str | None:
        """In a notebook: the first screen of ckpt-inspect, and the shard map."""
        try:
            return _notebook.page(self.path)
        except Error:  # what was opened is there no more, or the tools are not
            return None

    @property
    def _opened(self) -> ctypes.c_void_p:
        if not self._handle:
            raise UsageError(f"the checkpoint {self.path} is closed")
        return self._handle

    def _json(self, name: str, *arguments: int) -> dict[str, Any]:
        text = ctypes.c_void_p()
        _library.call(f"ebb_checkpoint_{name}", self._opened, *arguments, ctypes.byref(text))
        found: dict[str, Any] = _values.loads(_library.text(text))
        return found
