"""An ordinary torch optimizer whose state lies in a swap directory."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb.errors import Error, StateError, Unsupported, UsageError

from . import _groups, _placements, _state, _state_dict
from ._blobs import Blobs
from ._description import describe, named
from ._engine import Plan
from ._export import Export, raise_if
from ._options import Options
from ._run import Beginning, Run
from ._world import world_of


@dataclass(frozen=True)
class StepInfo:
    """What a step did. norm: of the whole gradient before clipping, NaN where it is not finite;
    clip: what it was multiplied with; skipped: a gradient was not finite, nothing has changed;
    bytes that this rank paged."""

    step: int = 0
    norm: float = 0.0
    clip: float = 1.0
    skipped: bool = False
    seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


class Optimizer(torch.optim.Optimizer):
    """What Muon and AdamW share. docs/python.md is its manual. Calls marked [C] are made by all
    ranks. One thread at a time: another one's call beside it raises StateError."""

    def __init__(self, params: Any, defaults: dict[str, Any], options: Options) -> None:
        self._options = options
        self._run: Run | None = None
        self._closed = False
        self._pid, self._in_call = os.getpid(), threading.Lock()
        self._beginning = Beginning()
        self._pending: dict[str, Any] = {"state": {}}  # a state dict that came before the engine
        self._consolidated: dict[int, dict[str, Any]] | None = None
        self._warned: set[str] = set()
        self.last = StepInfo()
        self._marked = 0  # the step of the last snapshot that was begun here
        self._export: Export | None = None
        self.blobs = Blobs(lambda: self._opened().engine)
        super().__init__(_groups.as_groups(params), defaults)

    # --- torch's own ---------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """[C] A step with the gradients that parameters have; one without stays as it is. `closure`
        runs first, and its answer is the step's."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._alone("step"):
            first = self._run is None
            if first:
                self._open()
            if not (first and self._opened().is_dummy()):
                self._make_step()
        return loss

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What torch's optimizers answer, for torch.save and for torch.distributed.checkpoint. [C]
        where parameters are DTensors. Where other ranks have the same plain parameters, all call
        consolidate_state_dict() before, and one this."""
        if self._closed:
            self._opened()
        packed = _state_dict.packed(self.param_groups)
        if self._run is None:
            return {**self._pending, "state": dict(self._pending["state"]), "param_groups": packed}
        with self._alone("state_dict"):
            return {"param_groups": packed, **self._states_now()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict() answered, here or from torch.optim.Muon or AdamW, on any number
        of ranks: [C] where the engine is open; else open() takes it, in place of what lies in
        `swap`."""
        given = dict(state_dict)
        groups = given.pop("param_groups")
        _state_dict.check_groups(self.param_groups, groups)
        if "store" in given.get("ebb", {}):
            self._take_reference(given)
        elif given.get("state"):
            self._take_states({**given, "param_groups": groups})
        _state_dict.take_groups(self.param_groups, groups)

    @torch.no_grad()
    def consolidate_state_dict(self, to: int = 0) -> None:
        """[C] Rank `to` gets the whole state, in files of its swap directory, for its next
        state_dict(), where ranks have the same plain parameters; elsewhere that needs nothing.
        Lightning calls it by itself."""
        if self._run is None:
            return
        with self._alone("consolidate_state_dict"):
            if not self._run.copied:
                return
            self._run.snapshot()
            self._consolidated = self._read_states(self._run.world.rank == to)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._run is not None:
            raise StateError(
                "groups and parameters are fixed while the engine is open",
                hint="optimizer.close(), then make it anew with all groups and resume='store':"
                " state goes with the names",
            )
        super().add_param_group(param_group)
        _groups.check_group(self.param_groups[-1])
        names = [name for one in self.param_groups for name in one["param_names"]]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two parameters are named {twice}")

    # --- Ebb's ---------------------------------------------------------------------------------

    @torch.no_grad()
    def open(self) -> None:
        """[C] What the first step() does: connects the ranks, and opens the store or makes it."""
        with self._alone("open"):
            if self._run is None:
                self._open()

    def close(self) -> None:
        """Lets go. Steps that no snapshot has are lost, and said (RuntimeWarning)."""
        if self._run is None or os.getpid() != self._pid:
            self._run, self._closed = None, True
            return
        with self._entered("close"):
            run, self._run, self._closed = self._run, None, True
            self.state.clear()
            try:
                # A snapshot that is being written is durable when the engine is closed.
                lost = self.last.step - max(run.engine.committed()[1], self._marked)
            except Error:
                lost = 0  # of the last snapshot: it was said behind a step
            self._close_export()
            run.close()
        if lost > 0:
            warnings.warn(
                f"{lost} steps since the last snapshot are lost: call snapshot() before",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # At the interpreter's end peers may live on, and a forked child has nothing to close.
        if getattr(self, "_run", None) is not None and not sys.is_finalizing():
            self.close()

    def __getstate__(self) -> Any:
        raise TypeError("an optimizer and its store are one: use state_dict()")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__getstate__()

    @property
    def opened(self) -> bool:
        return self._run is not None

    @property
    def steps(self) -> int:
        """How many steps the state has taken, those before a resume too."""
        return self._opened().steps

    @property
    def origin(self) -> str:
        """What the state began from, and what was different there; for people."""
        return str(self._opened().engine.about()["origin"])

    @property
    def store(self) -> Path:
        """What ckpt-inspect and ckpt-convert read."""
        return Path(self._opened().engine.about()["store"])

    @torch.no_grad()
    def plan(self) -> Plan:
        """What it takes, in bytes; before it is opened, too."""
        world = world_of(self._options.process_group)
        with self._alone("plan"):
            if self._run is not None:
                return self._run.model.plan(world.rank, world.size)
            model = describe(
                self.param_groups, named(self.param_groups), self._options, world
            )
            return model.plan(world.rank, world.size)

    def stats(self) -> dict[str, Any]:
        """The engine's counters, by name."""
        return self._opened().engine.stats()

    def snapshot(self, wait: bool = False) -> int | None:
        """[C] Marks the present state; it becomes durable beside the next steps, or now (`wait`).
        The generation, where that is known."""
        with self._alone("snapshot"):
            run = self._opened()
            self._mark(run)
            return run.engine.wait_snapshot() if wait else None

    def export(
        self, path: str | os.PathLike[str], format: str = "dcp", world: int | None = None,
        wait: bool = True,
    ) -> None:  # fmt: skip
        """[C] Makes a snapshot, and writes it as a checkpoint of another format ("dcp",
        "safetensors", "deepspeed", ...), for `world` ranks, None: as many as there are, to `path`,
        which must not be there: it appears whole or not at all. It needs no memory for the state.
        Without `wait` rank 0 writes beside the next steps; what goes wrong then is a
        RuntimeWarning, and the next export() and close() wait for it."""
        with self._alone("export"):
            run = self._opened()
            if len(self._options.directories()) > 1:
                raise Unsupported(
                    "export() reads one swap directory, and each rank has its own",
                    hint="torch.distributed.checkpoint saves state_dict()",
                )
            if self._export is not None:
                self._export.wait()
                self._close_export()
            self._mark(run)
            run.engine.wait_snapshot()
            self._export = Export(run, os.fspath(path), format, world or run.world.size)
            if wait:
                self._export.wait()
                export, self._export = self._export, None
                run.world.together(lambda: raise_if(export.close()))

    def _mark(self, run: Run) -> None:
        if run.snapshot():  # not while another one is being written
            self._marked = self.last.step

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """What this rank's engine does inside, as a timeline in Chrome's JSON, which Perfetto
        shows. Of several ranks each writes its own: of timeline.json rank 1 writes
        timeline.rank1.json."""
        run = self._opened()
        place = Path(path)
        if run.world.size > 1:
            place = place.with_suffix(f".rank{run.world.rank}{place.suffix}")
        run.engine.begin_trace()
        try:
            yield
        finally:
            place.write_text(run.engine.end_trace(), encoding="utf-8")

    @torch.no_grad()
    def take_parameters(self) -> None:
        """[C] Masters become the parameters, where these are not the masters rounded: after you
        edited them. A step notices by itself what torch's version counters know of."""
        with self._alone("take_parameters"):
            self._opened().take_parameters()

    @torch.no_grad()
    def state_of(self, name: str, state: str) -> Tensor:
        """[C] "master", "momentum_buffer", "exp_avg" or "exp_avg_sq" of a parameter, in fp32: this
        rank's shard, placed as the parameter."""
        with self._alone("state_of"):
            run = self._opened()
            if name not in run.of.names:
                raise UsageError(f"no parameter is named {name!r}")
            return run.read([run.of.names.index(name)], [state])[0][0]

    def load(self, path: str | os.PathLike[str]) -> str:
        """[C] Opens with the state of a checkpoint, of any format that Ebb reads, in place of what
        lies in `swap`. Answers what was taken."""
        if self._run is not None:
            raise StateError("load() comes before the first step", hint="make a new optimizer")
        self._beginning = Beginning(checkpoint=os.fspath(path))
        self.open()
        return self.origin

    # --- how -----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise StateError("this optimizer is closed", hint="make a new one: resume='store'")
        world = world_of(self._options.process_group)
        of = named(self.param_groups)
        self._run = Run(self.param_groups, of, self._options, world, self._beginning)
        self._pid = os.getpid()
        self._beginning, self._pending = Beginning(), {"state": {}}
        self.last = StepInfo(step=int(self._run.engine.about()["step"]))
        for i, param in enumerate(of.params):
            self.state[param] = self._lazy(self._run, i)

    def _lazy(self, run: Run, i: int) -> _state.LazyState:
        """torch's keys of a parameter, from the beginning."""
        count = ("step",) if run.of.algorithms[i] == "adamw" else ()

        def read(name: str) -> Tensor:
            return run.counts()(i) if name == "step" else run.read([i], [name])[0][0]

        return _state.LazyState((*count, *run.state_names(i)), read)

    def _make_step(self) -> None:
        began = time.perf_counter()
        for group in self.param_groups:
            _groups.check_means_nothing(group)
        run = self._opened()
        gradients = [self._gradient(n, p) for n, p in zip(run.of.names, run.of.params)]
        run.begin_step(gradients, self._options.max_norm)
        self._end_step(run, began)
        if self._export is not None and self._export.ended():
            self._close_export()
        try:
            run.engine.committed()
        except Error as error:
            self._say(str(error), f"the last snapshot was abandoned: {error}")

    @torch.no_grad()
    def _end_step(self, run: Run, began: float) -> None:
        """Of the step that is under way, if one is: Ctrl-C may leave one so, which goes on."""
        result = run.end_step()
        if result is None:
            return
        self.last = StepInfo(
            int(result.step), float(result.norm), float(result.clip), bool(result.skipped),
            time.perf_counter() - began, *run.paged(),
        )  # fmt: skip

    def _close_export(self) -> None:
        """What went wrong with one that nobody waits for is said."""
        if self._export is None:
            return
        export, self._export = self._export, None
        error = export.close()
        if error is not None:
            warnings.warn(f"ebb.torch: export(): {error}", RuntimeWarning, stacklevel=5)

    def _gradient(self, name: str, param: Tensor) -> Tensor | None:
        given = param.grad
        if given is None:
            return None
        gradient = _placements.alike(name, given, param)
        if gradient.layout is not torch.strided:
            raise TypeError(f"{name}: the gradient is {gradient.layout}, Ebb takes dense ones")
        if gradient.dtype is not param.dtype:
            raise TypeError(f"{name}: the gradient is {gradient.dtype}, and it {param.dtype}")
        if gradient.is_contiguous():
            return gradient
        self._say("copied", f"{name}: its gradient is not contiguous, and is copied in each step")
        return gradient.contiguous()

    def _states_now(self) -> dict[str, Any]:
        run = self._opened()
        if self._options.checkpoint == "reference":
            return {"state": {}, "ebb": self._reference(run)}
        if run.copied:
            states, self._consolidated = self._consolidated, None
            if states is None:
                raise StateError(
                    "state_dict() on one rank alone has only what this rank keeps",
                    hint="call optimizer.consolidate_state_dict() on all ranks before; with"
                    " transformers' Trainer: callbacks=[ebb.torch.hf.Callback()]",
                )
        else:
            run.snapshot()
            states = self._read_states(True) or {}
        return {"state": states, "ebb": {"step": run.steps}}

    def _read_states(self, keep: bool) -> dict[int, dict[str, Any]] | None:
        """[C] By torch's numbers of parameters; where they are not kept, the same calls."""
        run = self._opened()
        count = run.counts()
        read: dict[int, dict[str, Any]] = {}
        for names, some in run.alike():
            for name, tensors in zip(names, run.read(some, names)):
                for i, tensor in zip(some, tensors if keep else ()):
                    of = read.setdefault(i, {"step": count(i)} if "exp_avg" in names else {})
                    of[name] = tensor
        numbers = _state_dict.numbers(self.param_groups, run.of.params)
        return {number: read[i] for i, number in enumerate(numbers)} if keep else None

    def _take_states(self, given: dict[str, Any]) -> None:
        by_name = _state_dict.states_by_name(self.param_groups, given)
        step = _state_dict.step_of(given, by_name)
        if self._run is None:
            self._beginning = Beginning(states=by_name, step=step)
            self._pending = {"state": given["state"], "ebb": {"step": step}}
            return
        with self._alone("load_state_dict"):
            self._run.write_states(by_name, step)

    def _reference(self, run: Run) -> dict[str, Any]:
        paths = [str(path) for path in self._options.directories()]
        return {**run.reference(), "paths": paths}

    def _take_reference(self, given: dict[str, Any]) -> None:
        said = given["ebb"]
        if self._run is None:
            self._beginning, self._pending = Beginning(reference=said), {"state": {}, "ebb": said}
            return
        store = str(self._run.engine.about()["store_id"])
        if store != said["store"] or self._run.steps != said["step"]:
            raise StateError(
                f"the state dict means step {said['step']} of store {said['store']}, and open is"
                f" step {self._run.steps} of {store}",
                hint="load it before the first step",
            )

    def _opened(self) -> Run:
        if self._run is None:
            raise StateError(
                "this optimizer is closed" if self._closed else "this optimizer is not open yet",
                hint="make a new one: resume='store'" if self._closed else "optimizer.open()",
            )
        return self._run

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """The only call that is under way, with no step before it that is."""
        with self._entered(what):
            if self._run is not None:
                self._end_step(self._run, time.perf_counter())
            yield

    @contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise StateError(f"{what}() in a forked child: the optimizer is its parent's")
        if not self._in_call.acquire(blocking=False):
            raise StateError(f"{what}() beside a call of another thread")
        try:
            yield
        finally:
            self._in_call.release()

    def _say(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(f"ebb.torch: {text}", RuntimeWarning, stacklevel=4)
