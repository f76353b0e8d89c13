"""Run: an open engine and the parameters that it trains, on this rank."""

from __future__ import annotations

import ctypes
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb import _abi, _library
from ebb.errors import Busy, Error, IoError, StateError

from . import _engine, _placements, _state
from ._agreement import check_apart, check_placed
from ._blobs import OURS
from ._description import Named, describe
from ._options import Options
from ._settings import rates
from ._staging import Staging
from ._world import World, connect

_BEFORE = OURS + "steps before this store"  # a blob
_PAGEDS = "ebb.swap.Paged"  # one, too
_AT_ONCE = 64 << 20  # elements: enough for a disk, and little where nobody keeps them
_SLICE_MS = 200  # how long Ctrl-C waits for a step


@dataclass(frozen=True)
class Beginning:
    """What goes before a store that lies in the swap directory. states: by name, as a state dict
    has them, of `step`; checkpoint: of any format; reference: to a store, as a state dict has
    it."""

    states: dict[str, Any] | None = None
    step: int = 0
    checkpoint: str | None = None
    reference: dict[str, Any] | None = None


class Run:
    """Owns the engine and the ranks' connections. Nearly all is [C]; one thread at a time."""

    def __init__(
        self, groups: list[dict[str, Any]], of: Named, options: Options, world: World,
        beginning: Beginning,
    ) -> None:  # fmt: skip
        self.of, self.world = of, world
        self._groups, self._options = groups, options
        self.shapes = [param.shape for param in of.params]
        self._masters = options.masters_of(of.params, groups)
        self.model, self.scratch, self._staging = world.together(self._prepare)
        self._checksums = self._checksums_now()
        check_placed(of, self.model, self._checksums, world)
        self._ranks = connect(world, options.limit())
        with self._closing_ranks():
            start = self._start(beginning)
            self.engine = _engine.Engine(self.model, self._ranks, start, self._weights())
        self._places = self._places_now()
        self._rates = [rates(group) for group in groups]
        self.marked = 0  # the step of the last snapshot that was begun here
        self.lost_counts = self._take_pageds() and "adamw" in of.algorithms
        self._steps_before = self._read_steps_before()
        self._stepped = False
        self._under_way: list[Tensor | None] | None = None  # gradients, which the engine reads
        self._left: list[int] | None = None  # their versions, where Ctrl-C left the step
        # Both of a step that the disk stopped.
        self._stopped: tuple[list[Tensor | None], list[int]] | None = None
        self._paged = (0, 0)
        self.paged()
        self._hand_out()
        if beginning.states is not None:
            self.write_states(beginning.states, beginning.step)

    def _prepare(self) -> tuple[_engine.Model, Path, Staging]:
        """What can be found out alone."""
        model = describe(self._groups, self.of, self._options, self.world)
        check_apart(self.of, self._masters)
        directory = self._options.directory(self.world.rank, self.world.size)
        computing = model.of.computing
        staging = Staging(self.of.params, computing is not None and computing.parameters)
        return model, directory, staging

    def _take_pageds(self) -> bool:
        """Whether the store is one of ebb.swap.Paged that counted parameters' steps in its blob, as
        version 0.1.0 did."""
        blob = self.engine.blob(_PAGEDS)
        if blob is None:
            return False
        self.engine.set_blob(_PAGEDS, b"")
        return "version" not in json.loads(zlib.decompress(blob))

    def close(self) -> None:
        self.engine.close()
        _library.call("ebb_ranks_close", self._ranks)

    @property
    def copied(self) -> bool:
        """Whether other ranks have the same plain parameters."""
        return self.world.size > 1 and not self.of.sharded

    @property
    def steps(self) -> int:
        """Of the state, those that it took before it came into this store, too."""
        return self.steps_at(self.taken)

    def steps_at(self, taken: int) -> int:
        """The same, where it is known what the store counts: about() lists parameters."""
        return taken + self._steps_before

    @property
    def taken(self) -> int:
        """Of the steps, those that this store counts."""
        return int(self.engine.about()["step"])

    def _read_steps_before(self) -> int:
        return int(self.engine.blob(_BEFORE) or 0)

    def reference(self, generation: int) -> dict[str, Any]:
        """To a generation that has the present state."""
        store = str(self.engine.about()["store_id"])
        return {"store": store, "generation": generation, "step": self.steps}

    # --- a step --------------------------------------------------------------------------------

    def is_dummy(self) -> bool:
        """[C] torch's helpers make a step of nothing, with lr 0 and gradients of zeros, to have a
        state to fill: where it is the first one, it is none of the state's."""
        given = (p.grad for p in self.of.params if p.grad is not None)
        still = all(float(group["lr"]) == 0 for group in self._groups)
        return self.agreed(still and not any(bool(_placements.local(g).any()) for g in given))

    def snapshot(self) -> bool:
        """[C] Begins one. Where parameters are masters, or halves of them, it has what was edited,
        too."""
        if self._masters != "engine":
            self._take_edits(self._bind())
        begun = self.engine.snapshot()  # not while another one is being written
        if begun:
            self.marked = self.taken
        return begun

    def keep(self) -> int | None:
        """[C] Makes one, which is durable: its generation. None: those that are pinned leave no
        room."""
        begun = self.snapshot()
        if not begun:
            with suppress(Error):  # why the one before was abandoned: a step says it
                self.engine.wait_snapshot()
            begun = self.snapshot()
        return self.engine.wait_snapshot() if begun else None

    def make_up(self, had_gradients: Sequence[bool]) -> None:
        """[C] The step that is_dummy() took for one of torch's helpers, and was the trainer's."""
        mine = self.of.mine()
        zeros = [torch.zeros_like(m) if had else None for m, had in zip(mine, had_gradients)]
        self.begin_step(zeros, 0.0, lr_zero=True)
        self.end_step()

    def begin_step(
        self, gradients: Sequence[Tensor | None], max_norm: float, lr_zero: bool = False
    ) -> None:
        self._set_rates(lr_zero)
        self._take_edits(self._bind())
        self._stepped = True
        self._under_way = self._staging.gradients(gradients)
        try:
            self.engine.begin_step(self._under_way, 0.0, max_norm)
        except BaseException:
            self._under_way = None
            raise

    def end_step(self) -> Any:
        """The result of the step that is under way; None: none is. KeyboardInterrupt may leave it
        so: it goes on behind, with the gradients that are kept for it."""
        if self._under_way is None:
            return None
        under_way = self._under_way
        try:
            while not self.engine.step_ended(_SLICE_MS):
                pass
        except BaseException:
            self._left = self._left or _versions(under_way)
            raise
        self._under_way, left, self._left = None, self._left, None
        try:
            result = self.engine.wait_step()
        except Error:
            self._stopped = under_way, left or _versions(under_way)
            raise
        self._check_unwritten(left is None or left == _versions(under_way))
        self._hand_out()
        return result

    def continue_step(self) -> Any:
        """[C] The result of the step that an error of the disk stopped, to its end."""
        gradients, versions = self._stopped or ([], [])
        read = versions == _versions(gradients)
        if self._stopped is not None and (not read or self._versions != self._versions_now()):
            raise StateError(
                f"{'parameters' if read else 'gradients'} were written behind the step that was"
                " stopped, which goes on with what they were",
                hint="abandon_step() goes back to the last snapshot",
            )
        result = self.engine.continue_step()
        self._stopped = None
        self._hand_out()
        return result

    def abandon_step(self) -> None:
        """[C]"""
        self.engine.abandon()
        self._stopped = None
        self.marked = self.engine.committed()[1]
        self._steps_before = self._read_steps_before()
        self._hand_out()

    def save_to(self, swap: Any) -> None:
        """[C]"""
        before = self._options.swap
        self._options.move(swap)
        try:
            scratch = self._options.directory(self.world.rank, self.world.size)
            self.engine.save_to(str(scratch))
        except BaseException:
            self._options.move(before)
            raise
        self.scratch = scratch

    @property
    def under_way(self) -> Sequence[Tensor | None]:
        """The gradients of a step that is; none: there is none."""
        return self._under_way or ()

    def _check_unwritten(self, gradients_are: bool) -> None:
        """Of what somebody writes while a step reads it, nobody knows which numbers it read. A step
        that Ctrl-C left goes on, so this can be."""
        masters_are = self._masters != "parameters" or self._versions == self._versions_now()
        if gradients_are and masters_are:
            return
        written = "gradients" if masters_are else "parameters"
        raise StateError(
            f"{written} were written while a step was under way, which reads them",
            hint="behind Ctrl-C zero_grad() waits for the step, backward() does not. Make a new"
            " optimizer: resume='store' goes on at the last snapshot",
        )

    def paged(self) -> tuple[int, int]:
        """Bytes read and written since it was asked before."""
        stats, before = self.engine.stats(), self._paged
        self._paged = int(stats["pager_read_bytes"]), int(stats["pager_written_bytes"])
        return self._paged[0] - before[0], self._paged[1] - before[1]

    def take_parameters(self) -> None:
        self._bind()
        self._staging.take()
        self.engine.take_weights()
        self._note_versions()

    def agreed(self, mine: bool) -> bool:
        """[C] Whether it holds on all ranks."""
        if self.world.size == 1:
            return mine
        least = ctypes.c_int64()
        _library.call("ebb_ranks_agree", self._ranks, int(mine), ctypes.byref(least))
        return least.value == 1

    def _set_rates(self, lr_zero: bool = False) -> None:
        """What a scheduler changed."""
        for number, group in enumerate(self._groups):
            now = {**rates(group), "lr": 0.0} if lr_zero else rates(group)
            for key, value in now.items():
                if self._rates[number][key] != value:
                    self.engine.set(number, key, value)
                    self._rates[number][key] = value

    def _bind(self) -> bool:
        """Parameters that lie elsewhere now; whether there are any."""
        places, before = self._places_now(), self._places
        if places == before:
            return False
        weights = self._weights()
        moved = [i for i, there in enumerate(before) if places[i] != there and weights[i].numel()]
        for i in moved:
            self._check_moved(i)
        check_apart(self.of, self._masters)
        self._places = places
        for i in moved:
            self.engine.bind(i, weights[i])
        return True

    def _check_moved(self, i: int) -> None:
        """LayoutError, TypeError, ... where a parameter is no longer what the engine takes."""
        name, param = self.of.names[i], self.of.params[i]
        described = self.model.of.params[i].dtype
        if param.dtype is not described:
            raise TypeError(
                f"{name} is {param.dtype} now, and was {described} when the engine opened: close()"
                " it, and make the optimizer anew with resume='store'"
            )
        _placements.check_unchanged(name, param, self.shapes[i])
        _engine.check_tensor(name, _placements.local(param))

    def _take_edits(self, moved: bool) -> None:
        """Parameters that somebody moved or wrote since our last step, by torch's version counters,
        or by their checksums."""
        edited = moved or self._versions != self._versions_now()
        if self._options.check_parameters and not edited:
            self._staging.take()
            edited = self._checksums != self._checksums_now()
        if self._masters == "parameters":  # the engine reads them anyway
            if edited or self._staging.in_place:
                self._staging.take()
            if edited:
                self._note_versions()
            return
        if self.agreed(not edited):
            return
        self._staging.take()
        self.engine.take_weights()
        self._note_versions()
        if self._stepped:  # before that, checkpoints are loaded
            warnings.warn(
                "ebb.torch: parameters were moved or changed since the last step: masters take"
                f" them{', and lose their lower halves' if self._masters == 'halves' else ''}",
                RuntimeWarning, stacklevel=5,
            )  # fmt: skip

    def _hand_out(self) -> None:
        """New weights are there, written behind autograd's back: it is told."""
        self._staging.hand_out()
        torch.autograd.graph.increment_version(self._written)
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions = self._versions_now()
        if self._options.check_parameters:
            self._checksums = self._checksums_now()

    def _versions_now(self) -> list[int]:
        return [tensor._version for tensor in self._written]

    def _places_now(self) -> list[int]:
        """Addresses. What is written there is found out with them, once a step."""
        params, mine = self.of.params, self.of.mine()
        # A DTensor and its local tensor count versions apart.
        sharded = [m for m, p in zip(mine, params) if m is not p] if self.of.sharded else []
        self._written = [*params, *sharded]
        return [tensor.data_ptr() for tensor in mine]

    def _weights(self) -> list[Tensor]:
        """Where the engine puts them."""
        return [self._staging.weight(i) for i in range(len(self.of.params))]

    def _checksums_now(self) -> list[int]:
        return [_crc(weight) for weight in self._weights()]

    # --- state ---------------------------------------------------------------------------------

    def state_names(self, i: int) -> tuple[str, ...]:
        """A parameter's states that are tensors; the same on all ranks. A master is one where the
        parameter is not the whole of it."""
        names = _state.STATES[self.of.algorithms[i]]
        whole = self.of.params[i].dtype is torch.float32
        return names if whole else (*names, "master")

    def alike(self) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """Parameters that have the same states, as many as are read at once; the same on all
        ranks."""
        some: list[int] = []
        states: tuple[str, ...] = ()
        elems = 0
        for i, param in enumerate(self.of.params):
            if some and (states != self.state_names(i) or elems + param.numel() > _AT_ONCE):
                yield states, some
                some, elems = [], 0
            some.append(i)
            states, elems = self.state_names(i), elems + param.numel()
        if some:
            yield states, some

    def read(self, numbers: Sequence[int], states: Sequence[str]) -> list[list[Tensor]]:
        """[C] By state, by parameter: this rank's part, in a file of the swap directory, placed as
        the parameter. All parameters have all of the states, which lie together and are read
        together. A master that was edited is taken first, or a half of it."""
        if self._masters != "engine" and "master" in states:
            self._take_edits(self._bind())
        params = [self.of.params[i] for i in numbers]
        shapes = [tuple(_placements.local(param).shape) for param in params]
        mine = [[_state.file_backed(shape, self.scratch) for shape in shapes] for _ in states]
        self.engine.read_states(states, numbers, mine)
        return [[_state.like_parameter(*one) for one in zip(some, params)] for some in mine]

    def counts(self) -> Callable[[int], Tensor]:
        """How many steps a parameter has taken, as AdamW's state has it."""
        about = self.engine.about()
        step, others = int(about["step"]), about["taken"]
        return lambda i: torch.tensor(
            float(others.get(self.of.names[i], step)), dtype=torch.float32, device="cpu"
        )

    def write_states(self, by_name: dict[str, Any], step: int) -> None:
        """[C] One parameter after the other, each rank what it holds. What is not there begins
        anew; the state is that of `step` then, whatever this store has counted. Parameters become
        their masters, rounded; what was edited before is taken first."""
        self._take_edits(self._bind())
        masters = False
        for i, name in enumerate(self.of.names):
            given = by_name.get(name) or {}
            count = given.get("step") if given else 0
            taken = None if count is None else int(count)
            states = [s for s in self.state_names(i) if s in given or s != "master"]
            self.engine.write_states(
                states, [i], [[self._given(given.get(state), i)] for state in states], taken
            )
            masters = masters or "master" in states
        if masters:
            if self._masters == "engine":  # others are there already
                self.engine.install_weights()
            self._hand_out()
        self._steps_before = step - self.taken
        self.engine.set_blob(_BEFORE, str(self._steps_before).encode())

    def _given(self, state: Tensor | None, i: int) -> Tensor:
        """What this rank holds of a state that somebody gave; nothing: zeros."""
        param = self.of.params[i]
        if state is None:
            shape = _placements.local(param).shape
            return torch.zeros(shape, dtype=torch.float32, device="cpu")
        return _state.mine_of(state, param)

    # --- opening -------------------------------------------------------------------------------

    def _start(self, beginning: Beginning) -> _engine.Start:
        """[C] What lies in the directory already goes first only where that was said."""
        directory, said = str(self.scratch), beginning.reference
        if said is not None:
            return _engine.Start(
                directory, _abi.STORE, expected_store=str(said["store"]),
                expected_generation=int(said["generation"]),
            )  # fmt: skip
        given = beginning.states is not None or beginning.checkpoint is not None
        if given or self._options.resume == "discard":
            return _engine.Start(directory, _abi.GIVEN, checkpoint=beginning.checkpoint)
        found = any(self.world.gather(_has_store(self.scratch)))
        if found and self._options.resume is None:
            raise StateError(
                f"{directory} holds a store already: {self._what_is_there()}",
                hint="resume='store' goes on with it, resume='discard' begins with the parameters"
                " as they are; load_state_dict() before the first step wins",
            )
        return _engine.Start(directory, _abi.STORE_OR_GIVEN)

    def _what_is_there(self) -> str:
        """[C] What the engine says where a step is expected that no store has: nothing changes."""
        start = _engine.Start(str(self.scratch), _abi.STORE, expected_step=1 << 62)
        try:
            _engine.Engine(self.model, self._ranks, start, self._weights()).close()
        except (Busy, IoError):  # with which none of what is advised here would go on
            raise
        except Error as error:
            return str(error.args[0]).rpartition("there is ")[2]
        return "a store"

    @contextmanager
    def _closing_ranks(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            _library.call("ebb_ranks_close", self._ranks)
            raise


def _versions(gradients: Sequence[Tensor | None]) -> list[int]:
    return [gradient._version for gradient in gradients if gradient is not None]


def _has_store(directory: Path) -> bool:
    return any(entry.name.startswith("store-") for entry in directory.iterdir())


def _crc(weight: Tensor) -> int:
    here = weight.cpu()
    size = here.numel() * here.element_size()
    return zlib.crc32((ctypes.c_char * size).from_address(here.data_ptr())) if size else 0
