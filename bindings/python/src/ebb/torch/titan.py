"""ebb.torch in torchtitan 0.3: a container of one ebb.torch.Muon for all groups and model parts.

>>> optimizer=ebb.torch.titan.Optimizers.Config(swap="/nvme/run7", budget="4GiB", param_groups=[
...     ParamGroupConfig(pattern=r"layers\\..*(attention|feed_forward)\\..*weight",
...                      optimizer_name="Muon", optimizer_kwargs=dict(lr=0.02)),
...     ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=dict(lr=3e-4))])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer

from ._muon import Muon

__all__ = ["Optimizers"]

_CLASSES = {"muon": torch.optim.Muon, "adamw": torch.optim.AdamW}
# What Ebb's groups and torch's both have, by algorithm; Ebb's alone are no part of a checkpoint.
_SHARED = {
    "muon": ("lr", "weight_decay", "momentum", "nesterov", "eps"),
    "adamw": ("lr", "weight_decay", "betas", "eps"),
}
_OURS = ("algorithm", "preset", "split", "momentum", "nesterov", "betas", "eps")


class Optimizers(OptimizersContainer):
    """torchtitan's OptimizersContainer over Ebb. A group's `optimizer_name` is "Muon" or "AdamW".
    Its checkpoints are those of a container of torch.optim.Muon and torch.optim.AdamW: either goes
    on from the other's, on any number of ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        implementation: Literal["for-loop", "foreach", "fused", "fused_opt_states_bf16"] = (
            "for-loop"
        )
        """Means nothing here."""

        swap: str | list[str]
        """A directory, or one for each rank."""

        budget: int | str = "25%"
        """Bytes that each rank's engine may take."""

        options: dict[str, Any] = field(default_factory=dict)
        """Other arguments of ebb.torch.Muon. `resume` is "discard" where it is not given: what to
        go on from is for torchtitan's checkpoints to say."""

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        if config.options.get("checkpoint", "tensors") != "tensors":
            raise ValueError("torchtitan's checkpoints hold tensors: checkpoint='tensors'")
        self.model_parts = model_parts
        groups: list[dict[str, Any]] = []
        # As the base class puts them into the groups of its optimizers, and into checkpoints.
        containers = {"fused": False, "foreach": False}
        for model in model_parts:
            by_name, _ = self._build_param_groups(model, config.param_groups, containers)
            for name, some in by_name.items():
                groups += [{"algorithm": name.lower(), **group} for group in some]
        options = {"resume": "discard", **config.options}
        self.optimizers = [Muon(groups, swap=config.swap, budget=config.budget, **options)]
        params = [param for group in groups for param in group["params"]]
        self._validate_params(params)
        self._post_init(params)

    def state_dict(self) -> dict[str, Any]:
        """[C] Flat, by names, with the keys that torch's optimizers have."""
        flat = super().state_dict()
        kept = {key: value for key, value in flat.items() if not key.startswith("param_groups.")}
        for group in self.optimizers[0].param_groups:
            keys = _checkpointed(group)
            kept.update(_flat(group, keys))
        return kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """[C] What state_dict() answered, or the same of torch's optimizers."""
        flat = dict(state_dict)
        for group in self.optimizers[0].param_groups:
            known = [key for key in group if key not in ("params", "param_names")]
            mine = {key: group[key] for key in known}
            ours = [key for key in _OURS if key not in _SHARED[group["algorithm"]]]
            flat = {**_flat(group, mine), **flat}
            flat.update(_flat(group, {key: group[key] for key in ours if key in mine}))
        super().load_state_dict(flat)

    def close(self) -> None:
        """Lets go of the stores; torchtitan's Trainer does not call it."""
        for optimizer in self.optimizers:
            optimizer.close()


def _checkpointed(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings as torch's optimizer of that algorithm has them."""
    algorithm = group["algorithm"]
    kind = _CLASSES[algorithm]
    theirs = kind([nn.Parameter(torch.zeros(1, 1, device="cpu"))]).defaults
    added = {k: v for k, v in group.items() if k not in (*_OURS, "params", "param_names")}
    return {**theirs, **added, **{key: group[key] for key in _SHARED[algorithm]}}


def _flat(group: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        f"param_groups.{name}.{key}": value
        for name in group["param_names"]
        for key, value in settings.items()
    }
