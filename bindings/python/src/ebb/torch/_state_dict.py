"""State dicts as torch has them, beside the states themselves: groups, numbers, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ebb.errors import LayoutError

from . import _state
from ._settings import TORCH_MUONS, as_torch_has_them, check_means_nothing, is_own, keeps

Groups = Sequence[dict[str, Any]]
_RATES = ("lr", "weight_decay", "momentum", "nesterov", "betas", "eps")


def packed(groups: Groups) -> list[dict[str, Any]]:
    """With numbers in place of parameters."""
    all_of_them, first = [], 0
    for group in groups:
        one = {key: value for key, value in group.items() if key != "params"}
        one["params"] = list(range(first, first + len(group["params"])))
        first += len(group["params"])
        all_of_them.append(one)
    return all_of_them


def numbers(groups: Groups, params: Sequence[Tensor]) -> list[int]:
    """Torch's, of these parameters."""
    found: dict[int, int] = {}
    for group in groups:
        for param in group["params"]:
            found.setdefault(id(param), len(found))
    return [found[id(param)] for param in params]


def check_groups(mine: Groups, given: Groups) -> None:
    if len(given) != len(mine):
        raise ValueError(
            f"the state dict has {len(given)} groups, and this optimizer {len(mine)}"
        )
    for number, (ours, theirs) in enumerate(zip(mine, given)):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                f"a group of the state dict has {len(theirs['params'])} parameters, and here"
                f" {len(ours['params'])}"
            )
        check_means_nothing(theirs)
        _check_momentum(number, ours, theirs)


def _check_momentum(number: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    is_muons = ours["algorithm"] == theirs.get("algorithm", "muon") == "muon"
    if is_muons and keeps(theirs) != keeps(ours):
        said = {"ema": "an EMA", "sum": "a sum"}
        beta = float(theirs.get("momentum", 0.95))
        raise LayoutError(
            f"group {number}: the state dict's momentum is {said[keeps(theirs)]} (preset"
            f" {theirs.get('preset', 'torch')!r}), and preset {ours['preset']!r} keeps"
            f" {said[keeps(ours)]}: it would be wrong by a factor of {1 / (1 - beta):.3g}",
            hint=f"make the optimizer with preset={theirs.get('preset', 'torch')!r}; or"
            f" ckpt-convert CHECKPOINT NEW --momentum {keeps(ours)}, and load NEW",
        )


def taken(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What a group of ours has of one of a state dict: rates, and keys that are no settings. What
    else it was made with stays: another run does not change it."""
    some = {k: v for k, v in theirs.items() if is_own(k) or k in _RATES}
    if ours["algorithm"] != "muon":
        return some
    some.pop("betas", None)
    if "ns_steps" not in theirs:  # not torch's eps, but AdamW's
        some.pop("eps", None)
    if not ours["preset"] == theirs.get("preset", "torch") == "torch":
        return some
    # The default preset is torch.optim.Muon: settings that torch takes of a state dict are taken.
    mine = as_torch_has_them(ours)
    its = {key: theirs[key] for key in TORCH_MUONS if key in theirs}
    if "ns_coefficients" in its:
        its["ns_coefficients"] = tuple(its["ns_coefficients"])
    differs = any(mine.get(key) != value for key, value in its.items())
    return {**some, **its} if differs else some


def states_by_name(mine: Groups, given: dict[str, Any]) -> dict[str, Any]:
    """By our names: theirs where the state dict has them, else by their order. ValueError for
    states that are not those of our parameters."""
    names: dict[Any, str] = {}
    for ours, theirs in zip(mine, given["param_groups"]):
        names.update(zip(theirs["params"], theirs.get("param_names") or ours["param_names"]))
    by_name = {names.get(key, key): value for key, value in given["state"].items()}
    known = {name for group in mine for name in group["param_names"]}
    for name in by_name:
        if name not in known:
            raise ValueError(f"the state dict has {name!r}, which this optimizer has not")
    for group in mine:
        for name, param in zip(group["param_names"], group["params"]):
            if by_name.get(name):
                _check_states(name, by_name[name], group["algorithm"], param)
    return by_name


def _check_states(name: str, given: dict[str, Any], algorithm: str, param: Tensor) -> None:
    for state in _state.STATES[algorithm]:
        if state not in given:
            raise ValueError(
                f"the state dict has {', '.join(given)} of {name}, and no {state}, which"
                f" {algorithm} keeps"
            )
        value = given[state]
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: the state dict's {state} is no tensor, but {value!r:.60}")
        if value.is_complex():
            raise TypeError(f"{name}: the state dict's {state} is {value.dtype}")
        _state.check_shape(name, value, param)
    if "step" in given:
        _count(name, given["step"])


def _count(name: str, given: Any) -> int:
    """ValueError for what is no number of steps."""
    try:
        count = int(given)
    except (TypeError, ValueError, RuntimeError):
        count = -1
    if count < 0 or count != given:
        raise ValueError(f"{name}: the state dict's step is {given!r}: a number of steps from 0 up")
    return count


def step_of(given: dict[str, Any], by_name: dict[str, Any]) -> int:
    """What the state dict says of itself, or its parameters that count their steps."""
    if not by_name:
        return 0
    if "ebb" in given:
        return int(given["ebb"]["step"])
    counted = [_count(name, of["step"]) for name, of in by_name.items() if "step" in of]
    return max(counted, default=0)
