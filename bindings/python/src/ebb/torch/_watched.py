"""What torch's optimizers read anew at each step, and an open engine has taken for good: changes
are found, and refused by name. A state of opt.state is a copy: one that was written, too."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ebb.errors import StateError

from . import _state
from ._placements import local
from ._settings import fixed, fixed_keys, preset

_ANEW = (
    "set it back; or snapshot(wait=True), close(), and make the optimizer anew with resume='store':"
    " state goes with the names"
)
_RESET = (
    "clone() what you compute with. opt.load_state_dict() takes states; with {'state': {},"
    " 'param_groups': opt.state_dict()['param_groups']} all begin anew"
)


class Watched:
    """Groups and states of an optimizer whose engine has just been opened."""

    def __init__(self, of: torch.optim.Optimizer, lazy: Mapping[Tensor, _state.LazyState]) -> None:
        """`lazy`: what its `state` has from now on."""
        self._of, self._lazy = of, dict(lazy)
        self._groups = of.param_groups
        self._params = [list(group["params"]) for group in self._groups]
        self._fixed = [_fixed(group) for group in self._groups]
        self._keys = fixed_keys()
        self._said: list[dict[str, Any]] = [{} for _ in self._groups]  # what was found to be that
        self._handed: list[tuple[str, Tensor, int]] = []
        self._fill()

    def _fill(self) -> None:
        """Ours come first, then what others keep there: check_states() looks at no key, which would
        cost a call of Tensor.__hash__ each."""
        self._of.state.clear()
        self._of.state.update(self._lazy)

    def hand_out(self, what: str, tensor: Tensor) -> Tensor:
        """The tensor, whose changes are counted."""
        if tensor.is_inference():  # it cannot be written where anybody counts
            return tensor
        mine, counter = _state.counted(local(tensor))
        self._handed.append((what, counter, counter._version))
        return _state.like_parameter(mine, tensor)

    def check(self) -> None:
        """StateError where a step would not be what the groups or the states say now."""
        self.check_states()
        groups = self._of.param_groups
        if len(groups) != len(self._params) or not all(map(operator.is_, groups, self._groups)):
            raise StateError("there are other groups than when the engine opened", hint=_ANEW)
        for number, (group, params) in enumerate(zip(self._groups, self._params)):
            now = group["params"]
            if len(now) != len(params) or not all(map(operator.is_, now, params)):
                raise StateError(
                    f"group {number} has other parameters than when the engine opened", hint=_ANEW
                )
            self.check_settings(number, group)

    def check_settings(self, number: int, group: dict[str, Any]) -> None:
        """Of what a group is, or shall become."""
        said = {key: group[key] for key in group if key in self._keys}
        if said == self._said[number]:
            return
        before, now = self._fixed[number], _fixed(group)
        if before == now:
            self._said[number] = said
            return
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                raise StateError(
                    f"group {number}: {key} is fixed while the engine is open: it was"
                    f" {_said(before.get(key))}, and shall be {_said(now.get(key))}",
                    hint=_ANEW,
                )

    def check_states(self) -> None:
        there, ours = self._of.state.values(), self._lazy.values()
        if len(there) < len(ours) or not all(map(operator.is_, there, ours)):
            self._fill()
            raise StateError(
                "opt.state was written, which changes no state: it shows what the swap directory"
                " has",
                hint=_RESET,
            )
        handed, self._handed = self._handed, []
        for what, counter, version in handed:
            if counter._version != version:
                raise StateError(f"{what} was written, which is a copy", hint=_RESET)


def _said(value: str | None) -> str:
    return {"yes": "True", "no": "False"}.get(value or "", str(value))


def _fixed(group: dict[str, Any]) -> dict[str, str]:
    """Whichever way it is said."""
    if group["algorithm"] != "muon":
        return {"algorithm": str(group["algorithm"])}
    chosen = {"algorithm": "muon", "preset": str(group["preset"])}
    return {**preset(group["preset"]), **fixed(group), **chosen}
