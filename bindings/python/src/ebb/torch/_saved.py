"""An optimizer's state dicts: what came before its engine is open, what ranks collected, what is
answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ebb.errors import StateError, Unsupported

from . import _state_dict
from ._options import Options
from ._run import Beginning, Run
from ._said import Said
from ._settings import keeps_a_second_moment
from ._state_dict import Groups


class StateDicts:
    """One thread at a time, without gradients. `run`: the open engine's."""

    def __init__(self, options: Options, said: Said) -> None:
        self._options, self._said = options, said
        self.forget()
        self._collected: dict[int, dict[str, Any]] | None = None

    def forget(self) -> None:
        """What came before an engine has been taken by it, or shall not be."""
        self.beginning = Beginning()
        self._pending: dict[str, Any] = {"state": {}}

    def before(self) -> dict[str, Any]:
        """Of an optimizer without an engine: what it was given."""
        return {**self._pending, "state": dict(self._pending["state"])}

    def now(self, run: Run, groups: Groups, keep: Callable[[Run], int]) -> dict[str, Any]:
        """[C] where parameters are DTensors. `keep`: makes the present state durable."""
        if self._options.checkpoint == "reference":
            said = run.reference(keep(run))
            paths = [str(path) for path in self._options.directories()]
            return {"state": {}, "ebb": {**said, "paths": paths}}
        self._check_kind(groups)
        if run.copied:
            states, self._collected = self._collected, None
            if states is None:
                raise StateError(
                    "ranks that have the same parameters make a state dict together, and this one"
                    " has collected none since the last one",
                    hint="on all ranks before: optimizer.consolidate_state_dict() where rank 0"
                    " saves; consolidate_state_dict(to=None) where all ranks call state_dict()"
                    " (accelerate's save_state, torch's get_state_dict); with transformers'"
                    " Trainer: callbacks=[ebb.torch.hf.Callback()]",
                )
        else:
            run.snapshot()
            states = self._read(run, groups, True)
        return {"state": states, "ebb": {"step": run.steps}}

    def collect(self, run: Run, groups: Groups, to: int | None) -> None:
        """[C] For the next now() of rank `to`, None: of all."""
        self._check_kind(groups)
        run.snapshot()
        keep = to is None or run.world.rank == to
        states = self._read(run, groups, keep)
        self._collected = states if keep else None

    def _read(self, run: Run, groups: Groups, keep: bool) -> dict[int, dict[str, Any]]:
        """[C] By torch's numbers of parameters; where they are not kept, the same calls."""
        count = run.counts()
        read: dict[int, dict[str, Any]] = {}
        for names, some in run.alike():
            for name, tensors in zip(names, run.read(some, names)):
                for i, tensor in zip(some, tensors if keep else ()):
                    of = read.setdefault(i, {"step": count(i)} if "exp_avg" in names else {})
                    of[name] = tensor
        numbers = _state_dict.numbers(groups, run.of.params)
        return {number: read[i] for i, number in enumerate(numbers)} if keep else {}

    def take(self, run: Run | None, groups: Groups, given: dict[str, Any]) -> None:
        """[C] where the engine is open: its states, or all begin anew where it has none. Else what
        the engine will begin from."""
        if "store" in given.get("ebb", {}):
            self._take_reference(run, given["ebb"])
            return
        by_name = _state_dict.states_by_name(groups, given)
        step = _state_dict.step_of(given, by_name)
        if by_name:
            self._check_kind(groups)
        if run is not None:
            run.write_states(by_name, step)
            return
        self.forget()
        if by_name:
            self.beginning = Beginning(states=by_name, step=step)
            self._pending = {"state": dict(given["state"]), "ebb": {"step": step}}

    def _take_reference(self, run: Run | None, said: dict[str, Any]) -> None:
        if run is None:
            self.beginning, self._pending = Beginning(reference=said), {"state": {}, "ebb": said}
            return
        store = str(run.engine.about()["store_id"])
        if store != said["store"] or run.steps != said["step"]:
            raise StateError(
                f"the state dict means step {said['step']} of store {said['store']}, and open is"
                f" step {run.steps} of {store}",
                hint="load it before the first step",
            )

    def _check_kind(self, groups: Groups) -> None:
        check_kind(self._options, groups)
        for group in groups:
            if keeps_a_second_moment(group):
                self._said.once(
                    "second moment",
                    f"preset {group['preset']!r} keeps a second moment, which state dicts do not"
                    " have: it begins anew where one is loaded; snapshot() and export() have it",
                    7,
                )


def check_kind(options: Options, groups: Groups) -> None:
    """Unsupported where a momentum is kept as what has no tensor by its name."""
    if options.momentum_dtype is torch.int8 and any(g["algorithm"] == "muon" for g in groups):
        raise Unsupported(
            "a momentum in int8 is not given out or taken as a tensor",
            hint="snapshot() and resume='store' keep it, opt.export() writes it as a checkpoint of"
            " any format; momentum_dtype=torch.bfloat16 has state dicts",
        )
