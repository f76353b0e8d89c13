"""Any optimizer of torch's, or of a package, with its state in a swap directory."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ebb._paths import directory_of
from ebb._signals import held_back
from ebb._state_dict_hooks import calls_load_state_dict_hooks, calls_state_dict_hooks
from ebb.errors import Busy, Error, Incomplete, LayoutError, StateError, Unsupported
from ebb.torch import _state_dict
from ebb.torch._groups import check_names
from ebb.torch._placements import is_dtensor, local
from ebb.torch._sizes import bytes_of
from ebb.torch._state import LazyState, file_backed, like_parameter, mine_of
from ebb.torch._world import World, world_of

from . import _kept
from ._found import step_alone
from ._kind import Kind, settings_of
from ._loans import Loans
from ._params import WEIGHT, Held, Param, check_can_be_paged, registered
from ._space import Buffer, SwapSpace
from ._structure import PLAIN, state_of, values_of


@dataclass
class _Bucket:
    """Parameters that are stepped together, by an optimizer of their own."""

    params: list[Param]
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
        self._kind = Kind(kind, settings)
        self._budget = bytes_of(budget, "budget")
        self._process_group = process_group
        self._space_options: dict[str, Any] = {
            "directory": directory_of(swap, "swap"), "budget": self._budget,
            "sources": [directory_of(source, "sources") for source in sources], "tile": tile,
            "threads": threads,
        }  # fmt: skip
        self._space: SwapSpace | None = None
        self._closed = False
        self._params: list[Param] = []
        self._buckets: list[_Bucket] = []
        self.steps = 0
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
        for params in waiting:
            self._kind.look_at_gradients(params)
        for i, bucket in enumerate(self._buckets):
            self._prefetch(space, waiting[i + 1] if i + 1 < len(waiting) else [])
            if waiting[i]:
                self._step_bucket(space, bucket, waiting[i], changed)
        for number, values in changed.items():
            self.param_groups[number].update(values)
            self._kind.counted[number] |= set(values)
        self.steps += 1
        return loss

    @calls_state_dict_hooks
    @held_back()
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What `kind` answers, for torch.save and torch.distributed.checkpoint; its tensors are in
        files of the swap directory, which go with them."""
        packed = _state_dict.packed(self.param_groups)
        if self._space is None and not self._closed:
            return {"state": {}, "param_groups": packed}
        space = self.open()
        numbers = _state_dict.numbers(self.param_groups, [one.param for one in self._params])
        read = {number: self._read(space, one) for number, one in zip(numbers, self._params)}
        return {"state": {k: v for k, v in read.items() if v}, "param_groups": packed}

    @calls_load_state_dict_hooks
    @held_back()
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """[C] Takes what state_dict() answered, here or from `kind` itself. What it has no state of
        begins anew."""
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the state dict has other groups than this optimizer")
        self._take(self.open(), state_dict)
        for mine, theirs in zip(self.param_groups, groups):
            mine.update(copy.deepcopy(settings_of(theirs)))  # a rate may be a tensor

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_space", None) is not None:
            raise StateError("groups and parameters are fixed while the swap space is open")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if "param_names" not in group:
            raise ValueError("name the parameters: model.named_parameters()")
        check_names(self.param_groups)
        self.defaults.update(self._kind.add_group(group))

    def __getstate__(self) -> Any:
        raise TypeError("an optimizer and its store are one: use state_dict()")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__getstate__()

    # --- Ebb's ---------------------------------------------------------------------------------

    @held_back()
    @torch.no_grad()
    def open(self) -> SwapSpace:
        """[C] What the first step() does: finds out what the class keeps, opens the directory, and
        goes on with the state and the parameters that a snapshot left there."""
        if self._closed:
            raise StateError(
                "this optimizer is closed", hint="make a new one: it goes on with what swap= has"
            )
        if self._space is not None:
            self._check_groups()
            self._take_cleared(self._space)
            return self._space
        world = self._check_parameters()
        space = SwapSpace(**self._space_options, process_group=self._process_group)
        space._world = world
        self._params = [
            registered(space, name, param, number, self._kind.structure(name, param, number))
            for number, one in enumerate(self.param_groups)
            for name, param in zip(one["param_names"], one["params"])
        ]
        _kept.register_numbers(space, world, self._params)
        weights = {one.weight.number: local(one.param) for one in self._params}

        def begin(buffer: Buffer, tensors: dict[str, Tensor]) -> None:
            if buffer.number in weights:
                tensors[WEIGHT].copy_(weights[buffer.number])

        with self._says_what_helps():
            space.open(begin)
        try:
            self._buckets = list(self._make_buckets())
            self._resume(space, world)
        except BaseException:
            space.close()
            raise
        self._space = space
        return space

    @property
    def origin(self) -> str:
        """What the state began from, for people."""
        return self.open().origin

    @property
    def store(self) -> Path:
        """What ckpt-inspect and ckpt-convert read."""
        return self.open().store

    @held_back()
    @torch.no_grad()
    def snapshot(self, wait: bool = False) -> bool:
        """[C] Keeps the state and the parameters as they are, on the disk beside the next steps,
        or now (`wait`). False: not this time, as the snapshot before is still being written; with
        `wait` that is waited for, too."""
        space = self.open()
        if wait:
            space.wait_snapshot()
        again = self.steps <= space.step
        for one in self._params:
            if 0 not in one.weight.shape:
                with Loans(space) as loans:
                    held, mine = loans.take(one.weight)[WEIGHT], local(one.param)
                    loans.keep = not again or not _same_bits(held, mine)
                    if loans.keep:
                        held.copy_(mine)
        counted = [
            {key: group[key] for key in sorted(self._kind.counted[number]) if key in group}
            for number, group in enumerate(self.param_groups)
        ]
        _kept.keep(space, self.steps, self._params, counted)
        # What was changed since the last snapshot makes one of a later step.
        later = space.step + int(again and space._changed_anywhere())
        begun = space.snapshot(max(self.steps, later))
        if wait:
            space.wait_snapshot()
        return begun

    def wait_snapshot(self) -> int:
        """[C] Waits until it is on the disk; its number, 0 if there was none."""
        return self.open().wait_snapshot()

    def stats(self) -> dict[str, Any]:
        """Counters of what was read and written."""
        return self.open().stats()

    def close(self) -> None:
        """What no snapshot has is lost."""
        self._closed = True
        if self._space is not None:
            self._space.close()

    # --- before the first step -----------------------------------------------------------------

    def _check_groups(self) -> None:
        there = [(id(param), number) for number, group in enumerate(self.param_groups)
                 for param in group["params"]]  # fmt: skip
        if there != [(id(one.param), one.group) for one in self._params]:
            raise StateError(
                "groups and parameters are fixed while the swap space is open",
                hint="a parameter without gradient stays as it is: requires_grad_(False); else"
                " close() and make a new one, which goes on with what swap= has",
            )

    def _check_parameters(self) -> World:
        """The ranks that have one state: of sharded parameters all; of others this process alone,
        whoever else has the same."""
        whole: list[str] = []
        for group in self.param_groups:
            for name, param in zip(group["param_names"], group["params"]):
                check_can_be_paged(name, param)
                whole += [] if is_dtensor(param) else [name]
        if len(whole) == sum(len(group["params"]) for group in self.param_groups):
            return World(0, 1)
        if whole:
            raise Unsupported(
                f"{whole[0]} is whole on this rank, and others are DTensors: one swap directory"
                " cannot have both",
                hint="a Paged of its own for what is whole, in a directory for each rank:"
                " swap=f'/nvme/whole{torch.distributed.get_rank()}'",
            )
        return world_of(self._process_group)

    @contextmanager
    def _says_what_helps(self) -> Iterator[None]:
        """In words of this class."""
        try:
            yield
        except Busy as why:
            if not (dist.is_available() and dist.is_initialized()):
                raise
            raise _advised(
                why, f"{why.hint}; parameters that are whole on each rank (DDP) need a directory"
                " for each: swap=f'/nvme/run7/rank{torch.distributed.get_rank()}'"
            ) from why  # fmt: skip
        except (Incomplete, LayoutError) as why:
            raise _advised(
                why, f"it is not of {self._kind.name} with these settings and parameters, or of Ebb"
                " 0.1.0: name an empty directory; load_state_dict() takes a state dict"
            ) from why  # fmt: skip

    def _make_buckets(self) -> Iterator[_Bucket]:
        """Neighbours of one group: so many that the next ones fit beside them."""
        most = self._budget // 4
        for number, group in groupby(self._params, key=lambda one: one.group):
            waiting: list[Param] = []
            held = 0
            for one in group:
                if waiting and held + one.nbytes > most:
                    yield self._bucket(waiting, number)
                    waiting, held = [], 0
                waiting.append(one)
                held += one.nbytes
            yield self._bucket(waiting, number)

    def _bucket(self, params: list[Param], number: int) -> _Bucket:
        optimizer = self._kind.make([one.param for one in params], number)
        optimizer.state.clear()  # what some make at once
        return _Bucket(params, optimizer)

    # --- a step --------------------------------------------------------------------------------

    def _prefetch(self, space: SwapSpace, params: Sequence[Param]) -> None:
        for one in params:
            for buffer in one.buffers:
                space.prefetch(buffer)

    def _step_bucket(
        self, space: SwapSpace, bucket: _Bucket, params: list[Param],
        changed: dict[int, dict[str, Any]],
    ) -> None:  # fmt: skip
        number = params[0].group
        mine = self.param_groups[number]
        theirs = bucket.optimizer.param_groups[0]
        settings = settings_of(mine)
        theirs.update(settings)
        with Loans(space) as loans:
            with held_back():
                held = Held(loans, params)
            bucket.optimizer.state.clear()
            fresh = [one.param for one in params if one.kept is None]
            if fresh:  # what the class makes when it is made
                bucket.optimizer.state.update(self._kind.make(fresh, number).state)
            for one in params:
                if one.kept is not None:
                    bucket.optimizer.state[one.param] = held.state(one)
            step_alone(bucket.optimizer)
            with held_back():
                kept = [held.take(one, bucket.optimizer.state[one.param]) for one in params]
                bucket.optimizer.state.clear()
                loans.give_back(keep=True)
                for one, values in zip(params, kept):
                    one.take_numbers(values)
                    self._show(space, one)
        told = {
            k: v for k, v in settings_of(theirs).items()
            if type(v) in PLAIN and (k not in settings or v != settings[k])
        }  # fmt: skip
        if changed.setdefault(number, told) != told:
            raise Unsupported(
                f"{self._kind.name} cannot be paged: its settings depend on which parameters"
                " are stepped together"
            )

    # --- the whole state -----------------------------------------------------------------------

    def _read(self, space: SwapSpace, one: Param) -> dict[str, Any]:
        """As `kind` has it, in files; before the first step what that makes at once."""
        if one.kept is None:
            return dict(self._kind.make([one.param], one.group).state[one.param])
        values = one.numbers_now()
        for buffer in one.buffers:
            with Loans(space) as loans:
                for state, tensor in loans.take(buffer, modify=False).items():
                    file = file_backed(buffer.shape, space.directory, tensor.dtype)
                    copy = one.structure.paged[state].laid_out(file).copy_(tensor)
                    values[state] = like_parameter(copy, one.param) if one.alike(state) else copy
        return state_of(one.structure, values)

    def _take(self, space: SwapSpace, given: dict[str, Any]) -> None:
        """All of it is looked at before any is written."""
        numbers = _state_dict.numbers(self.param_groups, [one.param for one in self._params])
        theirs = [number for group in given["param_groups"] for number in group["params"]]
        found: list[dict[str, Any] | None] = []
        for number, one in zip(numbers, self._params):
            state = given["state"].get(theirs[number], given["state"].get(one.name))
            try:
                found.append(values_of(state, one.structure, one.name) if state else None)
            except Unsupported as why:
                raise LayoutError(
                    f"the state dict does not fit: {why.args[0]}",
                    hint=f"it is of another model, or of another class than {self._kind.name} with"
                    " these settings",
                ) from why
        for one, values in zip(self._params, found):
            if values is not None or one.kept is not None:
                self._write(space, one, values)

    def _write(self, space: SwapSpace, one: Param, values: dict[str, Any] | None) -> None:
        """None: as if it had never been stepped."""
        for buffer in one.buffers:
            with Loans(space) as loans:
                for path, tensor in loans.take(buffer).items():
                    if values is None:
                        tensor.zero_()
                    elif one.alike(path):
                        tensor.copy_(mine_of(values[path], one.param, tensor.dtype))
                    else:
                        tensor.copy_(values[path])
        kept = one.structure.kept
        one.kept = values and {path: kept[path].own(values[path]) for path in kept}
        self._show(space, one)

    def _show(self, space: SwapSpace, one: Param) -> None:
        """In `self.state`, as torch does: what was stepped."""
        if one.kept is None:
            self.state.pop(one.param, None)
        elif one.param not in self.state:

            def read(name: str) -> Any:
                kept = one.numbers_now()
                return kept[name] if name in kept else self._read(space, one)[name]

            self.state[one.param] = LazyState(tuple(one.structure.nested), read)

    def _take_cleared(self, space: SwapSpace) -> None:
        """What somebody took out of `self.state` begins anew, as with torch."""
        for one in self._params:
            if one.kept is not None and one.param not in self.state:
                self._write(space, one, None)

    def _resume(self, space: SwapSpace, world: World) -> None:
        found = _kept.resumed(space, world, self._params, len(self.param_groups))
        if found is None:
            return
        self.steps, counted = found
        for number, values in enumerate(counted):
            self.param_groups[number].update(values)
            self._kind.counted[number] |= set(values)
        for one in self._params:
            self._show(space, one)
            with Loans(space) as loans:
                local(one.param).copy_(loans.take(one.weight, modify=False)[WEIGHT])
        torch.autograd.graph.increment_version([one.param for one in self._params])


def _with_gradients(bucket: _Bucket) -> list[Param]:
    return [one for one in bucket.params if one.param.grad is not None]


def _same_bits(stored: Tensor, mine: Tensor) -> bool:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[stored.itemsize]
    return torch.equal(stored.view(whole), mine.detach().cpu().view(whole))


def _advised(error: Error, hint: str) -> Error:
    return type(error)(str(error.args[0]), hint=hint, rank=error.rank, tensor=error.tensor)
