"""Settings of a group: which there are, what the engine is told of them, and what torch.optim.Muon
calls them."""

from __future__ import annotations

import difflib
import functools
from typing import Any

import ebb

Group = dict[str, Any]

ALGORITHMS = ("muon", "adamw")
# Of each group, as torch and _optimizer.py know it. betas are AdamW's.
OURS = (
    "algorithm", "lr", "weight_decay", "momentum", "nesterov", "betas", "eps", "preset", "split",
)  # fmt: skip
NAMED = ("params", "param_names")
# Of those, what an algorithm does not read.
UNREAD = {"adamw": ("momentum", "nesterov", "preset", "split"), "muon": ("betas",)}
# torch.optim.Muon's beside ours. A group that has none of them has its preset's.
TORCH_MUONS = ("ns_coefficients", "ns_steps", "adjust_lr_fn")
_SCALES = {"original": "sqrt_max_1_rows_over_cols", "match_rms_adamw": "match_rms_adamw"}
# What other optimizers and containers put into groups: what must be so, or the result would be
# another; what changes none.
_MUST_BE = {"maximize": False, "amsgrad": False, "differentiable": False,
            "decoupled_weight_decay": True}  # fmt: skip
_ANY = ("foreach", "fused", "capturable")
# What schedulers keep there for themselves.
_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
# What a misspelled setting has in common with the right one, and a key of the user's own has not.
_NEAR = 0.84


def rates(group: Group) -> dict[str, float]:
    """What may change from step to step, by the engine's names."""
    some = {key: float(group[key]) for key in ("lr", "weight_decay", "eps")}
    if group["algorithm"] == "muon":
        return {**some, "beta": float(group["momentum"])}
    first, second = group["betas"]
    return {**some, "beta1": float(first), "beta2": float(second)}


def fixed(group: Group) -> dict[str, str]:
    """What is said once, when an engine opens, by the engine's names."""
    if group["algorithm"] != "muon":
        return {}
    others = _preset_settings()
    said = _steps(group)  # their number first: it says which there are
    said.update((key, str(group[key])) for key in group if key in others and key not in OURS)
    adjusted = group.get("adjust_lr_fn")
    if adjusted is not None:
        if adjusted not in _SCALES:
            raise ValueError(f"adjust_lr_fn={adjusted!r}: one of {', '.join(map(repr, _SCALES))}")
        said["scale"] = _SCALES[adjusted]
    if group.get("split"):
        said["split"] = str(group["split"])
    return {**said, "nesterov": "yes" if group["nesterov"] else "no"}


@functools.cache
def fixed_keys() -> frozenset[str]:
    """Of a group, those that fixed() and its algorithm follow from."""
    others = (*TORCH_MUONS, "algorithm", "nesterov", "preset", "split")
    return frozenset((*_preset_settings(), *others)) - {"lr", "weight_decay", "momentum", "eps"}


def _steps(group: Group) -> dict[str, str]:
    """Newton-Schulz' steps, where a group says of them what torch's does."""
    given, made = group.get("ns_coefficients"), preset(group["preset"]).get("ns_steps", "0")
    count = group.get("ns_steps", int(made))
    if not isinstance(count, int):
        raise TypeError(f"ns_steps={count!r}: a whole number")
    said = {} if str(count) == made else {"ns_steps": str(count)}
    if given is None:
        return said
    if len(given) != 3:
        raise ValueError(f"ns_coefficients={given!r}: three numbers, as torch.optim.Muon's")
    text = ",".join(repr(float(number)) for number in given)
    return said | {f"ns.{i}": group.get(f"ns.{i}") or text for i in range(1, count + 1)}


def as_torch_has_them(group: Group) -> Group:
    """A group of Muon's with what torch.optim.Muon reads in it, where its steps are torch's: the
    same coefficients in each, an EMA, a scale that torch has. Of AdamW's: as it is."""
    if group["algorithm"] != "muon":
        return group
    whole = {**preset(group["preset"]), **fixed(group)}
    count = int(whole.get("ns_steps", 0))
    steps = {whole[f"ns.{i}"] for i in range(1, count + 1) if f"ns.{i}" in whole}
    scales = [name for name, scale in _SCALES.items() if scale == whole.get("scale")]
    if len(steps) != 1 or not scales or whole["momentum"] != "ema":
        return group
    return {
        **group,
        "ns_coefficients": tuple(float(number) for number in steps.pop().split(",")),
        "ns_steps": count,
        "adjust_lr_fn": None if scales[0] == "original" else scales[0],
    }


def keeps(group: Group) -> str:
    """What its momentum is: "ema" or "sum". torch's own Muon has no preset."""
    return preset(group.get("preset", "torch")).get("momentum", "ema")


def keeps_a_second_moment(group: Group) -> bool:
    said = {**preset(group["preset"]), **fixed(group)} if group["algorithm"] == "muon" else {}
    return said.get("second_moment", "none") != "none"


@functools.cache
def _presets() -> dict[str, dict[str, str]]:
    return {one["name"]: one["settings"] for one in ebb.about()["presets"]}


def preset(name: str) -> dict[str, str]:
    """Settings as `python -m ebb presets` lists them; none of one that is not there, which the
    engine refuses."""
    return _presets().get(name, {})


@functools.cache
def _preset_settings() -> frozenset[str]:
    return frozenset(key for settings in _presets().values() for key in settings)


def is_own(key: str) -> bool:
    """Whether a group's key is no setting: a scheduler's, or the user's."""
    known = {*OURS, *NAMED, *TORCH_MUONS, *_MUST_BE, *_ANY, *_preset_settings()}
    return key not in known


def strange_keys(group: Group) -> list[str]:
    """Keys of the user's own. ValueError for one that looks like a setting, and is none of this
    algorithm's."""
    algorithm = group["algorithm"]
    settings = {*_preset_settings(), *TORCH_MUONS} if algorithm == "muon" else set()
    mine = {*OURS, *NAMED, *_MUST_BE, *_ANY, *_SCHEDULERS, *settings}
    strange = [key for key in group if key not in mine]
    for key in strange:
        near = difflib.get_close_matches(key, [*OURS, *settings], 1, _NEAR)
        if near or not is_own(key):
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"a group has {key!r}, which is no setting of {algorithm}{meant}")
    return strange


def check_arguments(algorithm: str, settings: Group) -> None:
    """TypeError or ValueError for an argument that is no setting of an optimizer's, or would change
    what it does."""
    mine = {*_preset_settings(), *TORCH_MUONS} - {*OURS} if algorithm == "Muon" else set()
    for key in settings:
        if key not in {*mine, *_MUST_BE, *_ANY}:
            raise TypeError(f"{algorithm}() got an unexpected keyword argument {key!r}")
    check_means_nothing(settings)


def check_means_nothing(group: Group) -> None:
    """ValueError for a setting of another optimizer that would change the result."""
    for key, wanted in _MUST_BE.items():
        if group.get(key, wanted) == wanted:
            continue
        if key == "decoupled_weight_decay" and not group.get("weight_decay"):
            continue  # torch.optim.Adam's, of no decay
        raise ValueError(f"{key}={group[key]!r} would change the result, and is not made")


class MuonGroup(Group):
    """Muon has one beta, torch's name of which is momentum. Schedulers that cycle it (OneCycleLR)
    write betas in all groups of an optimizer that has some: the first of them is the momentum."""

    def __init__(self, of: Group) -> None:
        super().__init__(of)
        self["momentum"] = of["momentum"]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key == "betas":
            super().__setitem__("momentum", value[0])
        elif key == "momentum" and "betas" in self:
            super().__setitem__("betas", (value, *self["betas"][1:]))

    def update(self, *given: Any, **named: Any) -> None:
        for key, value in dict(*given, **named).items():
            self[key] = value

    def __reduce__(self) -> Any:
        return MuonGroup, (dict(self),)
