"""An optimizer's groups in the engine's words."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebb._device import Device

from . import _engine, _groups, _placements
from ._options import Options
from ._sizes import bytes_of
from ._world import World


@dataclass(frozen=True)
class Named:
    """Parameters by the engine's numbers. One without elements has no state, and no number."""

    names: list[str]
    params: list[Tensor]
    groups: list[int]  # of each
    algorithms: list[str]

    @functools.cached_property
    def sharded(self) -> bool:
        return any(_placements.is_dtensor(p) for p in self.params)

    def mine(self) -> list[Tensor]:
        """What this rank has of each, where it lies now. Without gradients."""
        return [_placements.local(p) for p in self.params] if self.sharded else self.params


def named(groups: Sequence[dict[str, Any]]) -> Named:
    found = Named([], [], [], [])
    for number, group in enumerate(groups):
        for name, param in zip(group["param_names"], group["params"]):
            if param.numel() == 0:
                continue
            found.names.append(name)
            found.params.append(param)
            found.groups.append(number)
            found.algorithms.append(group["algorithm"])
    return found


def rates(group: dict[str, Any]) -> dict[str, float]:
    """What may change from step to step, by the engine's names."""
    some = {"lr": float(group["lr"]), "weight_decay": float(group["weight_decay"])}
    if group["algorithm"] == "muon":
        return {**some, "beta": float(group["momentum"])}
    first, second = group["betas"]
    return {**some, "beta1": float(first), "beta2": float(second), "eps": float(group["eps"])}


def describe(
    groups: Sequence[dict[str, Any]], of: Named, options: Options, world: World
) -> _engine.Model:
    """Unsupported, TypeError or ValueError, by name, for what Ebb does not take."""
    for name, param in zip(of.names, of.params):
        _engine.check_tensor(name, _placements.local(param))
    described = _engine.Description(
        [
            _engine.Param(name, tuple(param.shape), group, param.dtype)
            for name, param, group in zip(of.names, of.params, of.groups)
        ],
        [_settings(group) for group in groups],
        _placements.cut_of(dict(zip(of.names, of.params)), world.members),
        options.placement == "shard" or (options.placement == "auto" and of.sharded),
        bytes_of(options.tile, "tile"),
        bytes_of(options.chunk, "chunk"),
        options.slots,
        options.threads or max(1, len(os.sched_getaffinity(0)) // _ranks_here(world)),
        options.dtypes(options.masters_of(of.params, groups)),
        _computing(of, options),
    )
    model = _engine.Model(described)
    plan = model.plan(world.rank, world.size)
    return model.within(options.budget_of(plan.least_budget, plan.state, plan.memory))


def _computing(of: Named, options: Options) -> _engine.Computing | None:
    """ebb.Error where that GPU or its plugin is not there; None: the host computes."""
    if options.device_budget is None:
        return None
    devices = {_placements.local(param).device for param in of.params}
    there = sorted(str(device) for device in devices if device.type == "cuda")
    if len(there) > 1:
        raise ValueError(f"device_budget: parameters lie on {', '.join(there)}; one GPU computes")
    index = torch.device(there[0]).index if there else _current_gpu()
    return _engine.Computing(Device(index), options.device_bytes(), len(there) == len(devices) == 1)


def _current_gpu() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _settings(group: dict[str, Any]) -> tuple[str, str | None, dict[str, str]]:
    settings = {key: repr(value) for key, value in rates(group).items()}
    settings.update(_groups.more_settings(group))
    if group["algorithm"] == "adamw":
        return "adamw", None, settings
    settings["nesterov"] = "yes" if group["nesterov"] else "no"
    if group.get("split"):
        settings["split"] = str(group["split"])
    return "muon", str(group["preset"]), settings


def _ranks_here(world: World) -> int:
    return min(world.size, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))
