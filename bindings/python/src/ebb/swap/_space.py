"""A trainer's own state, paged: libswap's SwapSpace."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb import _abi, _library
from ebb._paths import directory_of
from ebb.errors import StateError, Unsupported, UsageError
from ebb.torch._sizes import bytes_of
from ebb.torch._world import World, connect, world_of

from ._leased import Term, leased, tensor_at
from ._loans import Loans

DTYPES = {
    torch.float32: _abi.F32, torch.bfloat16: _abi.BF16, torch.float16: _abi.F16,
    torch.float64: _abi.F64, torch.int64: _abi.I64, torch.int32: _abi.I32, torch.int16: _abi.I16,
    torch.int8: _abi.I8, torch.uint16: _abi.U16, torch.uint8: _abi.U8, torch.bool: _abi.BOOL,
}  # fmt: skip

States = Mapping[str, torch.dtype]
Fill = Callable[["Buffer", dict[str, Tensor]], None]
_FILL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)
)


@dataclass(frozen=True)
class Buffer:
    """What was registered together, and is acquired together: states of one tensor.

    shape: of what this rank keeps of each. whole: of the tensor; first: which of its rows come
    first here."""

    number: int
    name: str
    shape: tuple[int, ...]
    states: dict[str, torch.dtype]
    whole: tuple[int, ...] = field(repr=False, default=())
    first: int = field(repr=False, default=0)

    def tensors(self, places: Sequence[int | None]) -> dict[str, Tensor]:
        return {
            state: tensor_at(place, self.shape, dtype)
            for place, (state, dtype) in zip(places, self.states.items())
        }


class Lease:
    """A buffer in memory, until release(): a context manager that gives its tensors, by state. They
    are views of that memory: behind it they raise StateError. An exception inside releases it
    clean: what was changed is forgotten."""

    def __init__(self, space: SwapSpace, buffer: Buffer, modify: bool) -> None:
        self.buffer = buffer
        self._space, self._loans = space, Loans(space)
        self._term = Term(f"the buffer {buffer.name}", modify)
        try:
            self._plain = self._loans.take(buffer, modify)
            self._versions = self._versions_now()
        except BaseException:
            self._loans.give_back(keep=False)
            raise
        self.tensors = {state: leased(one, self._term) for state, one in self._plain.items()}

    def release(self, keep: bool = True) -> None:
        """`keep`: what the tensors are now is the buffer's content, where they may be changed."""
        if self._term.over:
            return
        self._term.over = True
        written = self._versions_now() != self._versions
        self._loans.give_back(keep)
        if written and keep and not self._term.modify:
            raise StateError(
                f"{self._term.what} was acquired with modify=False, and written: it may have that,"
                " or what it had, until it is written anew",
                hint="acquire(buffer) is for what is changed",
            )

    def _versions_now(self) -> list[int]:
        return [one._version for one in self._plain.values()]

    def __enter__(self) -> dict[str, Tensor]:
        return self.tensors

    def __exit__(self, failed: object, *_: object) -> None:
        self.release(keep=failed is None)

    def __del__(self) -> None:
        if hasattr(self, "_term") and not self._term.over and not self._space.closed:
            self.release(keep=False)


class SwapSpace:
    """Buffers of state in a swap directory, of which a budget is in memory at a time. What lies in
    the directory is a checkpoint: ckpt-inspect reads it, ckpt-convert makes any other of it.

    Register every buffer, open(), then acquire, change, release, and snapshot() from time to time:
    what no snapshot has is lost when the process ends.

    directory: one for all ranks, or one each. budget: bytes, "4GiB". process_group: torch's, of the
    ranks that share the tensors; the default one, or this process alone. sources: directories of a
    run of another number of ranks. tile: what is read and written at once; all ranks alike. slots:
    snapshots that a store has room for; with 2 a snapshot waits for its commit. threads: that take
    checksums. Calls marked [C] are made by all ranks, in the same order. One thread at a time.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, budget: int | str, process_group: Any = None,
        sources: Sequence[str | os.PathLike[str]] = (), tile: int | str = "1MiB", slots: int = 3,
        threads: int = 1, timeout: timedelta = timedelta(minutes=10),
    ) -> None:  # fmt: skip
        self.directory = directory_of(directory, "directory")
        self.buffers: list[Buffer] = []
        self._budget, self._tile = bytes_of(budget, "budget"), bytes_of(tile, "tile")
        self._sources = [directory_of(source, "sources") for source in sources]
        self._slots, self._threads, self._timeout = slots, threads, timeout
        self._group = process_group
        self._world: World | None = None  # the group's
        self._ranks, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._pid = os.getpid()
        self._changed = False  # since the last snapshot
        self.closed = False

    # --- before open() -------------------------------------------------------------------------

    def register(
        self, name: str, *, shape: Sequence[int], states: Sequence[str] | States,
        dtype: torch.dtype = torch.float32, rows: slice | None = None,
    ) -> Buffer:  # fmt: skip
        """States of a tensor of that shape, fp32 unless said. `rows`: which of its rows this rank
        keeps; together the ranks keep each once. A tensor of no dimensions is a row. All ranks
        register the same tensors, in the same order."""
        if self._handle:
            raise StateError("buffers are registered before open()")
        given = dict(states) if isinstance(states, Mapping) else dict.fromkeys(states, dtype)
        for state, kind in given.items():
            if kind not in DTYPES:
                raise Unsupported(f"{name} ({state}): {kind} cannot be stored")
        whole = tuple(shape)
        first, end, step = (rows or slice(None)).indices(whole[0] if whole else 1)
        if step != 1:
            raise UsageError(f"{name}: rows={rows} of {whole}: rows side by side are kept")
        mine = (max(0, end - first), *whole[1:]) if whole or end <= first else ()
        self.buffers.append(Buffer(len(self.buffers), name, mine, given, whole, first))
        return self.buffers[-1]

    def open(self, initial: Fill | None = None) -> str:
        """[C] Goes on with the directory's state, made by any number of ranks, or makes a store:
        `initial(buffer, tensors)` fills what each buffer begins with; the tensors, by state, are
        zeros. Answers which it was, for people."""
        if self._handle or self.closed:
            raise StateError("a swap space is opened once")
        world = self._world or world_of(self._group)
        self._ranks = ctypes.c_void_p(connect(world, self._timeout))
        failed: list[BaseException] = []

        def fill(_: Any, number: int, places: Any) -> int:
            buffer = self.buffers[number]
            term = Term(f"the buffer {buffer.name}", modify=True)
            try:
                tensors = buffer.tensors([places[i] for i in range(len(buffer.states))])
                if initial is not None:
                    initial(buffer, {k: leased(v, term) for k, v in tensors.items()})
                return _abi.DONE
            except BaseException as why:
                failed.append(why)
                return _abi.CANCELLED
            finally:
                term.over = True

        called = _FILL(fill)  # lives as long as the call
        config = self._config()
        if initial is not None:
            config.fill = ctypes.cast(called, ctypes.c_void_p)
        try:
            _library.call(
                "ebb_swap_open", ctypes.byref(config), self._ranks, ctypes.byref(self._handle)
            )
        except Exception as why:
            self.close()
            if failed:
                raise failed[0] from why
            raise
        return self.origin

    # --- then ----------------------------------------------------------------------------------

    def prefetch(self, buffer: Buffer) -> None:
        """A hint that it will be acquired, after those that were hinted at before."""
        self._call("ebb_swap_prefetch", buffer.number)

    def acquire(self, buffer: Buffer, modify: bool = True) -> Lease:
        """Its content, in memory; waits where that is on the disk."""
        return Lease(self, buffer, modify)

    def flush(self) -> None:
        """Waits until all that was released is written; what a crash leaves is the last
        snapshot's."""
        self._call("ebb_swap_flush")

    def go_on(self) -> None:
        """What could not be written is tried again: every call has raised that error since."""
        self._call("ebb_swap_go_on")

    def snapshot(self, step: int) -> bool:
        """[C] Keeps what was released, as of `step`, beside what follows. False: the one before is
        still being written. `step` counts up wherever something was changed."""
        begun = ctypes.c_int32()
        self._call("ebb_swap_snapshot", step, ctypes.byref(begun))
        self._changed = self._changed and begun.value == 0
        return begun.value != 0

    def wait_snapshot(self) -> int:
        """[C] Waits until it is on the disk; its number, 0 if there was none."""
        generation = ctypes.c_uint64()
        self._call("ebb_swap_wait_snapshot", ctypes.byref(generation))
        return generation.value

    def set_blob(self, key: str, value: bytes) -> None:
        """Bytes that come back after a resume, at most 256 KiB in all; with the next snapshot."""
        self._call("ebb_swap_set_blob", key.encode(), value, len(value))

    def blob(self, key: str) -> bytes | None:
        size = ctypes.c_uint64()
        self._call("ebb_swap_blob", key.encode(), None, ctypes.byref(size))
        room = ctypes.create_string_buffer(max(1, size.value))
        self._call("ebb_swap_blob", key.encode(), room, ctypes.byref(size))
        return room.raw[: size.value] or None

    @property
    def step(self) -> int:
        """Of the last snapshot; of the one that open() went on with; 0 of a new store."""
        return int(self.stats()["step"])

    @property
    def origin(self) -> str:
        return str(self.stats()["origin"])

    @property
    def store(self) -> Path:
        """What ckpt-inspect and ckpt-convert read."""
        return Path(self.stats()["store"])

    def stats(self) -> dict[str, Any]:
        """Counters: read_bytes, written_bytes, acquires, stalls, ..."""
        text = ctypes.c_void_p()
        self._call("ebb_swap_about", ctypes.byref(text))
        said: dict[str, Any] = json.loads(_library.text(text))
        return said

    def close(self) -> None:
        """What no snapshot has is lost."""
        if self.closed or sys.is_finalizing():
            return
        self.closed = True
        if self._handle:
            _library.call("ebb_swap_close", self._handle)
        if self._ranks:
            _library.call("ebb_ranks_close", self._ranks)
        self._handle, self._ranks = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> SwapSpace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "closed"):
            self.close()

    def _call(self, function: str, *arguments: object) -> None:
        if not self._handle:
            raise StateError("this swap space is closed" if self.closed else "open() comes first")
        _library.call(function, self._handle, *arguments)

    def _acquire(self, buffer: Buffer, modify: bool) -> tuple[int, dict[str, Tensor]]:
        places = (ctypes.c_void_p * max(1, len(buffer.states)))()
        number = ctypes.c_uint64()
        self._call(
            "ebb_swap_acquire", buffer.number, int(modify), places, ctypes.byref(number)
        )
        return number.value, buffer.tensors([places[i] for i in range(len(buffer.states))])

    def _release(self, number: int, keep: bool) -> None:
        self._call("ebb_swap_release", number, int(keep))
        self._changed = self._changed or keep

    def _changed_anywhere(self) -> bool:
        """[C] Whether any rank released what it changed since the last snapshot."""
        least = ctypes.c_int64()
        _library.call("ebb_ranks_agree", self._ranks, int(not self._changed), ctypes.byref(least))
        return least.value == 0

    def _config(self) -> _abi.SwapConfig:
        parts = [self._part(b, s, d) for b in self.buffers for s, d in b.states.items()]
        sources = (ctypes.c_char_p * len(self._sources))(*map(os.fsencode, self._sources))
        return _abi.SwapConfig(
            size=ctypes.sizeof(_abi.SwapConfig), directory=os.fsencode(self.directory),
            sources=sources, source_count=len(sources), parts=(_abi.SwapPart * len(parts))(*parts),
            part_count=len(parts), budget_bytes=self._budget, tile_bytes=self._tile,
            slots=self._slots, threads=self._threads,
        )  # fmt: skip

    @staticmethod
    def _part(buffer: Buffer, state: str, dtype: torch.dtype) -> _abi.SwapPart:
        row = torch.Size(buffer.whole[1:]).numel()
        return _abi.SwapPart(
            size=ctypes.sizeof(_abi.SwapPart), tensor=buffer.name.encode(), state=state.encode(),
            shape=(ctypes.c_uint64 * len(buffer.whole))(*buffer.whole), ndim=len(buffer.whole),
            dtype=DTYPES[dtype], buffer=buffer.number, first=buffer.first * row,
            elems=torch.Size(buffer.shape).numel(),
        )  # fmt: skip
