"""Any optimizer of torch's, or of a package, with its state in a swap directory."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb.errors import LayoutError, StateError, Unsupported
from ebb.torch import _state_dict
from ebb.torch._placements import box_of, is_dtensor, local
from ebb.torch._sizes import bytes_of
from ebb.torch._state import file_backed, like_parameter, mine_of
from ebb.torch._world import World

from ._found import check_steps_alone, found_structure
from ._space import Buffer, SwapSpace
from ._structure import Kept, Structure, state_of, values_of

_BLOB = "ebb.swap.Paged"
_WEIGHT = "param"
_NAMED = ("params", "param_names")  # of a group, what is no setting
_PLAIN = (bool, int, float)


@dataclass
class _Param:
    """A parameter, and where its state lies: a buffer for all states of its shape, one for each
    other; `weight` for itself, which only snapshots write."""

    name: str
    param: Tensor
    group: int
    structure: Structure
    buffers: list[Buffer]
    weight: Buffer
    kept: dict[str, Any] | None = None  # its small values; None: it was never stepped

    def alike(self, state: str) -> bool:
        """Whether a state is of its shape, and lies where it does."""
        return self.structure.paged[state].shape == tuple(self.param.shape)

    @property
    def nbytes(self) -> int:
        return sum(
            torch.Size(buffer.shape).numel() * dtype.itemsize
            for buffer in self.buffers
            for dtype in buffer.states.values()
        )


@dataclass
class _Bucket:
    """Parameters that are stepped together, by an optimizer of their own."""

    params: list[_Param]
    optimizer: torch.optim.Optimizer


class Paged(torch.optim.Optimizer):
    """An optimizer of class `kind` whose state lies in a swap directory: of it a budget is in
    memory at a time. It steps a few parameters after the other, with the same bits as if it had all
    its state in memory, and reads the next ones' meanwhile.

    >>> opt = ebb.swap.Paged(torch.optim.AdamW, model.named_parameters(), swap="/nvme/run7",
    ...                      budget="4GiB", lr=1e-3)

    kind: any class whose step of a parameter depends on no other parameter, and whose state is
      tensors and numbers. Others raise ebb.Unsupported, here: LBFGS, SparseAdam.
    params: named parameters, or groups of them, on any device. FSDP's rows of all ranks are one
      state, of which each rank keeps its own; plain parameters are this rank's alone, in a
      directory of its own.
    swap: the directory. budget: bytes, "4GiB". settings: what `kind` takes.

    snapshot() keeps the state and the parameters; whoever opens the directory again, on any number
    of ranks, goes on with both. Calls marked [C] are made by all ranks. One thread at a time.
    """

    def __init__(
        self, kind: type[torch.optim.Optimizer], params: Any, *,
        swap: str | os.PathLike[str], budget: int | str, process_group: Any = None,
        sources: Sequence[str | os.PathLike[str]] = (), tile: int | str = "1MiB", threads: int = 1,
        **settings: Any,
    ) -> None:  # fmt: skip
        self._kind, self._settings = kind, settings
        self._budget = bytes_of(budget, "budget")
        self._process_group = process_group
        self._space_options: dict[str, Any] = {
            "directory": swap, "budget": self._budget, "sources": sources, "tile": tile,
            "threads": threads,
        }  # fmt: skip
        self._space: SwapSpace | None = None
        self._params: list[_Param] = []
        self._buckets: list[_Bucket] = []
        self.steps = 0
        self._structures: dict[Any, Structure] = {}
        self._counted: dict[int, set[str]] = {}  # of groups, what the class itself changes
        super().__init__(params, {})

    # --- torch's own ---------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """[C] A step with the gradients that parameters have; one without stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        space = self.open()
        changed: dict[int, dict[str, Any]] = {}
        waiting = [_with_gradients(bucket) for bucket in self._buckets]
        for i, bucket in enumerate(self._buckets):
            self._prefetch(space, waiting[i + 1] if i + 1 < len(waiting) else [])
            if waiting[i]:
                self._step_bucket(space, bucket, waiting[i], changed)
        for number, values in changed.items():
            self.param_groups[number].update(values)
            self._counted.setdefault(number, set()).update(values)
        self.steps += 1
        return loss

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What `kind` answers, for torch.save and torch.distributed.checkpoint; its tensors are in
        files of the swap directory, which go with them."""
        packed = _state_dict.packed(self.param_groups)
        if self._space is None:
            return {"state": {}, "param_groups": packed}
        numbers = _state_dict.numbers(self.param_groups, [one.param for one in self._params])
        read = {number: self._read(one) for number, one in zip(numbers, self._params)}
        return {"state": {k: v for k, v in read.items() if v}, "param_groups": packed}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """[C] Takes what state_dict() answered, here or from `kind` itself."""
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the state dict has other groups than this optimizer")
        for mine, theirs in zip(self.param_groups, groups):
            mine.update({k: v for k, v in theirs.items() if k not in _NAMED})
        if state_dict["state"]:
            self.open()
            self._take(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_space", None) is not None:
            raise StateError("groups and parameters are fixed while the swap space is open")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "param_names" not in group:
            raise ValueError("name the parameters: model.named_parameters()")
        self._take_defaults(group)
        shapes = {tuple(param.shape) for param in group["params"]}
        check_steps_alone(lambda params: self._make(params, group), self._kind, shapes)

    # --- Ebb's ---------------------------------------------------------------------------------

    @torch.no_grad()
    def open(self) -> SwapSpace:
        """[C] What the first step() does: finds out what the class keeps, opens the directory, and
        goes on with the state and the parameters that a snapshot left there."""
        if self._space is not None:
            return self._space
        space = SwapSpace(**self._space_options, process_group=self._process_group)
        if not any(is_dtensor(p) for group in self.param_groups for p in group["params"]):
            space._world = World(0, 1)  # what this process has, whoever else has the same
        self._params = [
            self._register(space, number, name, param)
            for number, one in enumerate(self.param_groups)
            for name, param in zip(one["param_names"], one["params"])
        ]
        space.open()
        self._space = space
        self._buckets = list(self._make_buckets())
        self._resume(space)
        return space

    @property
    def origin(self) -> str:
        """What the state began from, for people."""
        return self.open().origin

    @property
    def store(self) -> Path:
        """What ckpt-inspect and ckpt-convert read."""
        return self.open().store

    @torch.no_grad()
    def snapshot(self) -> bool:
        """[C] Keeps the state and the parameters as they are, on the disk beside the next steps.
        False: the snapshot before is still being written."""
        space = self.open()
        for one in self._params:
            if 0 not in one.weight.shape:
                with space.acquire(one.weight) as held:
                    held[_WEIGHT].copy_(local(one.param))
        space.set_blob(_BLOB, self._small())
        return space.snapshot(self.steps)

    def wait_snapshot(self) -> int:
        """[C] Waits until it is on the disk; its number, 0 if there was none."""
        return self.open().wait_snapshot()

    def stats(self) -> dict[str, Any]:
        """Counters of what was read and written."""
        return self.open().stats()

    def close(self) -> None:
        """What no snapshot has is lost."""
        if self._space is not None:
            self._space.close()

    # --- before the first step -----------------------------------------------------------------

    def _make(self, params: Sequence[Tensor], group: dict[str, Any]) -> torch.optim.Optimizer:
        """Of `kind`, for parameters of a group."""
        own = {k: v for k, v in group.items() if k not in _NAMED}
        made: torch.optim.Optimizer = self._kind(
            [{**own, "params": list(params)}], **self._settings
        )
        return made

    def _take_defaults(self, group: dict[str, Any]) -> None:
        """The settings that the class has and nobody gave."""
        stand_in = [torch.nn.Parameter(torch.zeros_like(local(p), device="meta"))
                    for p in group["params"][:1]]  # fmt: skip
        made = self._make(stand_in, group)
        self.defaults.update(made.defaults)
        for key, value in made.param_groups[0].items():
            if key not in _NAMED:
                group.setdefault(key, value)

    def _register(self, space: SwapSpace, number: int, name: str, param: Tensor) -> _Param:
        mine = local(param)
        group = self.param_groups[number]
        shape = tuple(param.shape)
        kind = (number, shape, mine.dtype)
        if kind not in self._structures:
            self._structures[kind] = found_structure(
                lambda params: self._make(params, group), shape, mine, name
            )
        structure = self._structures[kind]
        rows = _rows(name, param)
        alike = {k: v.dtype for k, v in structure.paged.items() if v.shape == shape}
        others = {k: v for k, v in structure.paged.items() if v.shape != shape}
        if others and is_dtensor(param):
            raise Unsupported(
                f"{name}: {', '.join(others)} of {self._kind.__name__} is not of its shape, and it"
                f" is {tuple(param.placements)}"  # type: ignore[attr-defined]
            )
        buffers = [space.register(name, shape=shape, states=alike, rows=rows)] if alike else []
        buffers += [
            space.register(name, shape=one.shape, states={state: one.dtype})
            for state, one in others.items()
        ]
        weight = space.register(name, shape=shape, states={_WEIGHT: mine.dtype}, rows=rows)
        return _Param(name, param, number, structure, buffers, weight)

    def _make_buckets(self) -> Iterator[_Bucket]:
        """Neighbours of one group: so many that the next ones fit beside them."""
        most = self._budget // 4
        for number, group in groupby(self._params, key=lambda one: one.group):
            waiting: list[_Param] = []
            held = 0
            for one in group:
                if waiting and held + one.nbytes > most:
                    yield self._bucket(waiting, number)
                    waiting, held = [], 0
                waiting.append(one)
                held += one.nbytes
            yield self._bucket(waiting, number)

    def _bucket(self, params: list[_Param], number: int) -> _Bucket:
        optimizer = self._make([one.param for one in params], self.param_groups[number])
        optimizer.state.clear()  # what some make at once
        return _Bucket(params, optimizer)

    # --- a step --------------------------------------------------------------------------------

    def _prefetch(self, space: SwapSpace, params: Sequence[_Param]) -> None:
        for one in params:
            for buffer in one.buffers:
                space.prefetch(buffer)

    def _step_bucket(
        self, space: SwapSpace, bucket: _Bucket, params: list[_Param],
        changed: dict[int, dict[str, Any]],
    ) -> None:  # fmt: skip
        number = params[0].group
        mine = self.param_groups[number]
        theirs = bucket.optimizer.param_groups[0]
        settings = {k: v for k, v in mine.items() if k not in _NAMED}
        theirs.update(settings)
        with _Held(space, params) as held:
            bucket.optimizer.state.clear()
            fresh = [one.param for one in params if one.kept is None]
            if fresh:  # what the class makes when it is made
                bucket.optimizer.state.update(self._make(fresh, mine).state)
            for one in params:
                if one.kept is not None:
                    bucket.optimizer.state[one.param] = held.state(one)
            bucket.optimizer.step()
            for one in params:
                one.kept = held.take(one, bucket.optimizer.state[one.param])
            bucket.optimizer.state.clear()
        told = {
            k: v for k, v in theirs.items()
            if k not in _NAMED and type(v) in _PLAIN and (k not in settings or v != settings[k])
        }  # fmt: skip
        if changed.setdefault(number, told) != told:
            raise Unsupported(
                f"{self._kind.__name__} cannot be paged: its settings depend on which parameters"
                " are stepped together"
            )

    # --- the whole state -----------------------------------------------------------------------

    def _read(self, one: _Param) -> dict[str, Any]:
        """As `kind` has it, in files; before the first step what that makes at once."""
        space = self.open()
        if one.kept is None:
            return dict(self._make([one.param], self.param_groups[one.group]).state[one.param])
        values: dict[str, Any] = dict(one.kept)
        for buffer in one.buffers:
            with space.acquire(buffer, modify=False) as held:
                for state, tensor in held.items():
                    copy = file_backed(buffer.shape, space.directory, tensor.dtype)
                    copy.copy_(tensor)
                    values[state] = like_parameter(copy, one.param) if one.alike(state) else copy
        return state_of(one.structure, values)

    def _take(self, given: dict[str, Any]) -> None:
        numbers = _state_dict.numbers(self.param_groups, [one.param for one in self._params])
        theirs = [number for group in given["param_groups"] for number in group["params"]]
        for number, one in zip(numbers, self._params):
            state = given["state"].get(theirs[number], given["state"].get(one.name))
            one.kept = None if not state else self._write(one, state)

    def _write(self, one: _Param, state: dict[str, Any]) -> dict[str, Any]:
        values = values_of(state, one.structure, one.name)
        for buffer in one.buffers:
            with self.open().acquire(buffer) as held:
                for path, tensor in held.items():
                    given = values[path]
                    tensor.copy_(
                        mine_of(given, one.param, tensor.dtype) if one.alike(path) else given
                    )
        return {path: _own(values[path], kept) for path, kept in one.structure.kept.items()}

    # --- what stays in memory, and how it comes back ---------------------------------------------

    def _small(self) -> bytes:
        """Numbers of each parameter, and of the groups, as a blob: runs of the same are one."""
        runs = [
            [values, sum(1 for _ in run)]
            for values, run in groupby(
                None if one.kept is None else {k: _number(v) for k, v in one.kept.items()}
                for one in self._params
            )
        ]
        groups = [
            {key: group[key] for key in sorted(self._counted.get(number, ()))}
            for number, group in enumerate(self.param_groups)
        ]
        text = json.dumps({"steps": self.steps, "params": runs, "groups": groups})
        return zlib.compress(text.encode())

    def _resume(self, space: SwapSpace) -> None:
        blob = space.blob(_BLOB)
        if blob is None:
            return
        said = json.loads(zlib.decompress(blob))
        all_of_them = [values for values, count in said["params"] for _ in range(count)]
        if len(all_of_them) != len(self._params):
            raise LayoutError(
                f"{space.store} is of {len(all_of_them)} parameters, and these are"
                f" {len(self._params)}"
            )
        self.steps = said["steps"]
        for number, values in enumerate(said["groups"]):
            self.param_groups[number].update(values)
            self._counted[number] = set(values)
        for one, values in zip(self._params, all_of_them):
            if values is not None:
                one.kept = {k: _own(values[k], kept) for k, kept in one.structure.kept.items()}
            with space.acquire(one.weight, modify=False) as held:
                local(one.param).copy_(held[_WEIGHT])
        torch.autograd.graph.increment_version([one.param for one in self._params])


class _Held:
    """The leases of parameters that are stepped, and their tensors where the step wants them."""

    def __init__(self, space: SwapSpace, params: Sequence[_Param]) -> None:
        self._space, self._params = space, params
        self._leases: list[int] = []
        self._here: dict[str, dict[str, Tensor]] = {}  # of the frames, by parameter and state

    def __enter__(self) -> _Held:
        try:
            for one in self._params:
                for buffer in one.buffers:
                    number, tensors = self._space._acquire(buffer, True)
                    self._leases.append(number)
                    self._here.setdefault(one.name, {}).update(tensors)
        except BaseException:
            self._release(keep=False)
            raise
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._release(keep=failed is None)

    def _release(self, keep: bool) -> None:
        for number in self._leases:
            self._space._release(number, keep)
        self._leases.clear()

    def state(self, one: _Param) -> dict[str, Any]:
        """Of a parameter, as its optimizer wants it."""
        device = local(one.param).device
        paged = one.structure.paged
        there = {k: paged[k].placed(v, device) for k, v in self._here.get(one.name, {}).items()}
        placed = {
            k: like_parameter(v, one.param) if one.alike(k) else v for k, v in there.items()
        }
        return state_of(one.structure, {**placed, **(one.kept or {})})

    def take(self, one: _Param, state: dict[str, Any]) -> dict[str, Any]:
        """What the step made of it, into the frames; the small values."""
        values = values_of(state, one.structure, one.name)
        for path, tensor in self._here.get(one.name, {}).items():
            made = local(values[path])
            if made.data_ptr() != tensor.data_ptr():
                tensor.copy_(made)
        return {path: values[path] for path in one.structure.kept}


def _with_gradients(bucket: _Bucket) -> list[_Param]:
    return [one for one in bucket.params if one.param.grad is not None]


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


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _own(value: Any, kept: Kept) -> Any:
    """A value that nobody else has."""
    plain = _number(value)
    if kept.dtype is not None:
        return torch.tensor(plain, dtype=kept.dtype)
    return {"int": int, "float": float, "bool": bool}[kept.kind](plain)
