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
from ebb.errors import LayoutError

from . import _engine, _placements
from ._options import Options
from ._settings import fixed, rates
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


def describe(
    groups: Sequence[dict[str, Any]], of: Named, options: Options, world: World,
    planned: bool = False,
) -> _engine.Model:  # fmt: skip
    """Unsupported, TypeError or ValueError, by name, for what Ebb does not take. `planned`: of
    parameters that need not be there yet."""
    for name, param in zip(of.names, of.params):
        _engine.check_tensor(name, _placements.local(param), planned)
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
        options.drop_unknown,
        options.threads or max(1, len(os.sched_getaffinity(0)) // _ranks_here(world)),
        options.dtypes(options.masters_of(of.params, groups)),
        _computing(of, options),
    )
    model = _engine.Model(described)
    plan = _planned(model, options, world)
    return model.within(options.budget_of(plan.least_budget, plan.state, plan.memory))


def _planned(model: _engine.Model, options: Options, world: World) -> _engine.Plan:
    try:
        return model.plan(world.rank, world.size)
    except LayoutError as error:
        if options.momentum_dtype is not torch.int8:
            raise
        raise LayoutError(
            str(error.args[0]), tensor=error.tensor,
            hint="int8 wants placement='owner' here; momentum_dtype=torch.bfloat16 lies anywhere",
        ) from error  # fmt: skip


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
    preset = str(group["preset"]) if group["algorithm"] == "muon" else None
    return group["algorithm"], preset, {**settings, **fixed(group)}


def _ranks_here(world: World) -> int:
    return min(world.size, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))
