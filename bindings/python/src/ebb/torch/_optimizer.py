"""An ordinary torch optimizer whose state lies in a swap directory."""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb._signals import held_back
from ebb._state_dict_hooks import calls_load_state_dict_hooks, calls_state_dict_hooks
from ebb.errors import Error, LayoutError, StateError, Unsupported, UsageError

from . import _groups, _settings, _state, _state_dict
from ._blobs import Blobs
from ._description import describe, named
from ._engine import Plan
from ._export import Exports
from ._gradients import gradients_of
from ._options import Options
from ._rescue import Rescue
from ._run import Beginning, Run
from ._said import Said
from ._saved import StateDicts, check_kind
from ._watched import Watched
from ._world import world_of


@dataclass(frozen=True)
class StepInfo:
    """What a step did. step: of the state's, as `steps` counts them; norm: of the whole gradient
    before clipping, NaN where it is not finite; clip: what it was multiplied with; skipped: a
    gradient was not finite, nothing has changed; bytes that this rank paged."""

    step: int = 0
    norm: float = 0.0
    clip: float = 1.0
    skipped: bool = False
    seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


class Optimizer(Rescue, torch.optim.Optimizer):
    """What Muon and AdamW share. docs/python.md is its manual. Calls marked [C] are made by all
    ranks. One thread at a time: another one's call beside it raises StateError."""

    def __init__(
        self, params: Any, defaults: dict[str, Any], options: Options, of_muon: dict[str, Any]
    ) -> None:  # fmt: skip
        """`of_muon`: settings of Muon's groups that have none of them."""
        self._options, self._of_muon = options, of_muon
        self._run: Run | None = None
        self._watched: Watched | None = None  # while it is open
        self._closed = False
        self._pid, self._in_call = os.getpid(), threading.Lock()
        self._owed: list[bool] | None = None  # a first step that was left out: who had a gradient
        self._said = Said()
        self._saved = StateDicts(options, self._said)
        self.last = StepInfo()
        self._exports = Exports()
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
            if first and self._opened().is_dummy():
                self._owed = [p.grad is not None for p in self._opened().of.params]
            else:
                self._make_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; a step that Ctrl-C left, which reads the gradients, ends before."""
        if self._run is not None and self._run.under_way:
            with self._alone("zero_grad"):
                pass
        super().zero_grad(set_to_none)

    @calls_state_dict_hooks
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What torch's optimizers answer, for torch.save and for torch.distributed.checkpoint. [C]
        where parameters are DTensors. Where other ranks have the same plain parameters, all call
        consolidate_state_dict() before, and one this, or all."""
        if self._closed:
            self._opened()
        mine = self.param_groups
        groups = [_settings.as_torch_has_them(group) for group in _state_dict.packed(mine)]
        if self._run is None:
            return {**self._saved.before(), "param_groups": groups}
        with self._alone("state_dict"):
            self._owed = None
            self._check_unchanged()
            return {"param_groups": groups, **self._saved.now(self._run, mine, self._keep)}

    @calls_load_state_dict_hooks
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict() answered, here or from torch.optim.Muon or AdamW, on any number
        of ranks: [C] where the engine is open; else open() takes it, in place of what lies in
        `swap`."""
        if self._closed:
            self._opened()
        mine, groups = self.param_groups, copy.deepcopy(state_dict["param_groups"])
        _state_dict.check_groups(mine, groups)
        taken = [_state_dict.taken(*both) for both in zip(mine, groups)]
        for ours, changes in zip(mine, taken):
            _settings.fixed({**ours, **changes})
        given = {**state_dict, "param_groups": groups}
        if self._run is None:
            self._saved.take(None, mine, given)
        else:
            with self._alone("load_state_dict"):
                self._check_unchanged(taken)
                self._owed = None
                self._saved.take(self._run, mine, given)
        for group, changes in zip(mine, taken):
            for key, value in changes.items():
                group[key] = value

    @torch.no_grad()
    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """[C] Rank `to`, None: each rank, gets the whole state, in files of its swap directory, for
        its next state_dict(), where ranks have the same plain parameters; elsewhere that needs
        nothing. Lightning calls it by itself."""
        if self._run is None:
            return
        with self._alone("consolidate_state_dict"):
            if not self._run.copied:
                return
            self._check_unchanged()
            self._make_up(self._run)
            self._saved.collect(self._run, self.param_groups, to)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._run is not None:
            raise StateError(
                "groups and parameters are fixed while the engine is open",
                hint="optimizer.close(), then make it anew with all groups and resume='store':"
                " state goes with the names",
            )
        is_muons = param_group.get("algorithm", self.defaults["algorithm"]) == "muon"
        given = {**self._of_muon, **param_group} if is_muons else param_group
        if is_muons:  # whose eps is Newton-Schulz'
            known = _settings.preset(given.get("preset", self.defaults["preset"]))
            given.setdefault("eps", float(known.get("eps", 1e-7)))
        super().add_param_group(given)
        group = self.param_groups.pop()
        self._check_group(group)
        self.param_groups.append(_settings.MuonGroup(group) if is_muons else group)

    def _check_group(self, group: dict[str, Any]) -> None:
        strange = _groups.check_group(group)
        _groups.check_names([*self.param_groups, group])
        if len(set(map(id, group["params"]))) != len(group["params"]):
            raise ValueError("a group has a parameter twice, under two names: give it once")
        unread = _settings.UNREAD[group["algorithm"]]
        for key in (*strange, *(k for k in unread if group[k] != self.defaults[k])):
            text = f"a group has {key!r}, which is no setting of {group['algorithm']}"
            self._said.once(text, f"{text}: it is kept for you, and changes nothing", 8)

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
            self._watched = None
            self.state.clear()
            try:
                # A snapshot that is being written is durable when the engine is closed.
                lost = run.taken - max(run.engine.committed()[1], run.marked)
            except Error:
                lost = 0  # of the last snapshot: it was said behind a step
            self._exports.close()
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
        # Lightning's wrapper is of this class, too, and asks the optimizer for what it has not.
        if vars(self).get("_run") is not None and not sys.is_finalizing():
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
            of = named(self.param_groups)
            self._said.frozen(of.params)
            model = describe(self.param_groups, of, self._options, world, planned=True)
            return model.plan(world.rank, world.size)

    def stats(self) -> dict[str, Any]:
        """The engine's counters, by name."""
        return self._opened().engine.stats()

    def snapshot(self, wait: bool = False) -> int | None:
        """[C] Marks the present state; it becomes durable beside the next steps, or now (`wait`).
        The generation, where that is known. While one is being written, the next one is put off,
        and said to be (RuntimeWarning), or waits (`wait`)."""
        with self._alone("snapshot"):
            run = self._to_be_kept()
            if wait:
                return self._keep(run)
            if not run.snapshot() and run.marked < run.taken:
                self._said.once(
                    "put off",
                    "a snapshot was put off: the one before is still being written. stats() counts"
                    " them; snapshot(wait=True) waits",
                )
            return None

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
            run = self._to_be_kept()
            if len(self._options.directories()) > 1:
                raise Unsupported(
                    "export() reads one swap directory, and each rank has its own",
                    hint="torch.distributed.checkpoint saves state_dict()",
                )
            self._exports.finish()
            self._keep(run)
            place = os.path.abspath(path)
            self._exports.begin(run, place, format, world or run.world.size, wait)

    def _keep(self, run: Run) -> int:
        """[C] The generation of the present state, which is durable now."""
        kept = run.keep()
        if kept is None and self._exports.finish():  # which has the room
            kept = run.keep()
        if kept is None:
            raise StateError("there is no room for a snapshot", hint="slots=3, the default")
        return kept

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """What this rank's engine does inside, as a timeline in Chrome's JSON, which Perfetto
        shows. Of several ranks each writes its own: of timeline.json rank 1 writes
        timeline.rank1.json."""
        run = self._opened()
        place = Path(path).absolute()
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
            if state == "momentum_buffer":
                check_kind(self._options, self.param_groups)
            if name not in run.of.names:
                raise UsageError(f"no parameter is named {name!r}")
            return run.read([run.of.names.index(name)], [state])[0][0]

    def load(self, path: str | os.PathLike[str]) -> str:
        """[C] Opens with the state of a checkpoint, of any format that Ebb reads, in place of what
        lies in `swap`. Answers what was taken."""
        if self._run is not None:
            raise StateError("load() comes before the first step", hint="make a new optimizer")
        self._saved.beginning = Beginning(checkpoint=os.fspath(path))
        try:
            self.open()
        except LayoutError as error:
            if "the torch checkpoint" not in str(error.args[0]):
                raise
            raise LayoutError(
                str(error.args[0]), file=error.file, tensor=error.tensor,
                hint="an optimizer that was saved without names has numbers in their place:"
                " load_state_dict(torch.load(path)[...]) takes them, in the order of the"
                " parameters. A name that changed: ckpt-convert --rename",
            ) from error  # fmt: skip
        return self.origin

    # --- how -----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise StateError("this optimizer is closed", hint="make a new one: resume='store'")
        world = world_of(self._options.process_group)
        of = named(self.param_groups)
        self._said.frozen(of.params)
        with held_back():  # an engine has an owner
            run = Run(self.param_groups, of, self._options, world, self._saved.beginning)
            self._run, self._pid = run, os.getpid()
            self._opened_now(run)
        if run.lost_counts:
            self._said.lost_counts(run.taken)

    def _opened_now(self, run: Run) -> None:
        of = run.of
        self._saved.forget()
        self.last = StepInfo(step=run.steps)
        lazy = {param: self._lazy(run, i) for i, param in enumerate(of.params)}
        self._watched = Watched(self, lazy)

    def _lazy(self, run: Run, i: int) -> _state.LazyState:
        """torch's keys of a parameter, from the beginning."""
        count = ("step",) if run.of.algorithms[i] == "adamw" else ()

        @torch.no_grad()
        def read(name: str) -> Tensor:
            if name == "momentum_buffer":
                check_kind(self._options, self.param_groups)
            found = run.counts()(i) if name == "step" else run.read([i], [name])[0][0]
            watched = self._watched
            what = f"opt.state[{run.of.names[i]}][{name!r}]"
            return found if watched is None else watched.hand_out(what, found)

        return _state.LazyState((*count, *run.state_names(i)), read)

    def _make_step(self) -> None:
        began = time.perf_counter()
        for group in self.param_groups:
            _settings.check_means_nothing(group)
        run = self._opened()
        self._check_unchanged()
        self._make_up(run)
        gradients = gradients_of(run.of.names, run.of.params, run.shapes, self._said)
        run.begin_step(gradients, self._options.max_norm)
        self._end_step(run, began)
        self._exports.look()
        try:
            run.engine.committed()
        except Error as error:
            self._said.once(str(error), f"the last snapshot was abandoned: {error}")

    @torch.no_grad()
    def _end_step(self, run: Run, began: float) -> None:
        """Of the step that is under way, if one is: Ctrl-C may leave one so, which goes on."""
        gradients = run.under_way
        result = run.end_step()
        if result is not None:
            self._note(run, result, gradients, began)

    def _note(
        self, run: Run, result: Any, gradients: Sequence[Tensor | None], began: float
    ) -> None:
        self.last = StepInfo(
            run.steps_at(int(result.step)), float(result.norm), float(result.clip),
            bool(result.skipped), time.perf_counter() - began, *run.paged(),
        )  # fmt: skip
        if self.last.skipped:
            self._said.skipped(run.of.names, gradients)

    def _make_up(self, run: Run) -> None:
        """[C] The first step, where it was none of a helper's: then a state dict had come next."""
        owed, self._owed = self._owed, None
        if owed is not None:
            run.make_up(owed)

    def _check_unchanged(self, shall_be: Sequence[dict[str, Any]] = ()) -> None:
        """StateError for what the open engine does not notice."""
        assert self._watched is not None
        self._watched.check()
        for number, changes in enumerate(shall_be):
            self._watched.check_settings(number, {**self.param_groups[number], **changes})

    def _to_be_kept(self) -> Run:
        """[C] The run, whose state is what the program thinks it is."""
        run = self._opened()
        if self._watched is not None:
            self._watched.check_states()
        self._make_up(run)
        return run

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
