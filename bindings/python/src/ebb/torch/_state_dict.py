"""State dicts as torch has them, beside the states themselves: groups, numbers, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from . import _groups, _state

Groups = Sequence[dict[str, Any]]
# What a group was made with, which a state dict of another run does not change.
_KEPT = ("params", "param_names", "algorithm", "preset", "split")


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
    for ours, theirs in zip(mine, given):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                f"a group of the state dict has {len(theirs['params'])} parameters, and here"
                f" {len(ours['params'])}"
            )
        _groups.check_means_nothing(theirs)


def take_groups(mine: Groups, given: Groups) -> None:
    """Their rates. No key comes in that way: the set of them is the same for ever."""
    for ours, theirs in zip(mine, given):
        ours.update({k: v for k, v in theirs.items() if k in ours and k not in _KEPT})


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
        _state.check_shape(name, given[state], param)


def step_of(given: dict[str, Any], by_name: dict[str, Any]) -> int:
    """What the state dict says of itself, or its parameters that count their steps."""
    if "ebb" in given:
        return int(given["ebb"]["step"])
    return max((int(state["step"]) for state in by_name.values() if "step" in state), default=0)
