"""Which parameters Muon trains, and groups of named parameters as an optimizer keeps them."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import ebb

Group = dict[str, Any]
Rule = Callable[[str, torch.Tensor], "str | None"]

ALGORITHMS = ("muon", "adamw")
# Of a group, as _optimizer.py knows it.
OURS = (
    "algorithm", "lr", "weight_decay", "momentum", "nesterov", "betas", "eps", "preset", "split",
)  # fmt: skip
# What other optimizers and containers put into groups: what must be so, or the result would be
# another; what changes none; what schedulers keep there for themselves.
_MUST_BE = {"maximize": False, "amsgrad": False, "differentiable": False,
            "decoupled_weight_decay": True}  # fmt: skip
_ANY = {"params", "param_names", "foreach", "fused", "capturable"}
_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}


class Groups(list[Group]):
    """Groups of named parameters; printed, they say who went where."""

    def __repr__(self) -> str:
        lines = []
        for group in self:
            settings = {k: v for k, v in group.items() if k not in ("params", "algorithm")}
            lines.append(f"{group['algorithm']} {settings}:")
            lines += [f"  {name} {tuple(param.shape)}" for name, param in group["params"]]
        return "\n".join(lines)


def groups(
    model: nn.Module,
    *,
    muon: Group | None = None,
    adamw: Group | None = None,
    rule: str | Rule = "hidden",
) -> Groups:
    """A model's parameters, named, as a group for Muon and one for AdamW.

    muon, adamw: settings of theirs, such as dict(lr=0.02).
    rule: "hidden": Muon takes parameters of two and more dimensions that are neither an embedding's
      nor the output head's. A head is what the model calls so (get_output_embeddings()), or a
      linear layer with as many outputs as the largest embedding has entries. Or a function of a
      name and its parameter that answers "muon", "adamw", or None, which leaves it out.
    """
    if isinstance(rule, str):
        if rule != "hidden":
            raise ValueError(f"rule={rule!r}: write 'hidden', or a function")
        rule = _hidden(model)
    split: dict[str, list[tuple[str, torch.Tensor]]] = {name: [] for name in ALGORITHMS}
    for wrapped, param in model.named_parameters():
        name = _own_name(model, wrapped)
        algorithm = rule(name, param)
        if algorithm is None:
            continue
        if algorithm not in split:
            raise ValueError(f"the rule answers {algorithm!r} for {name}: 'muon' or 'adamw'")
        split[algorithm].append((name, param))
    settings = {"muon": muon or {}, "adamw": adamw or {}}
    return Groups(
        {"params": params, "algorithm": name, **settings[name]}
        for name, params in split.items()
        if params
    )


def _own_name(model: nn.Module, name: str) -> str:
    """As the model calls it: what wraps the model or its modules is none of the state's names."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        name = name.removeprefix("module.")
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def _hidden(model: nn.Module) -> Rule:
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    others = {id(m.weight) for m in embeddings}
    # Positions may be as many as a layer is wide: the vocabulary is the largest.
    words = max((m.num_embeddings for m in embeddings), default=-1)
    heads: list[nn.Module] = [
        m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == words
    ]
    named = getattr(model, "get_output_embeddings", None)
    head = named() if callable(named) else None
    if isinstance(head, nn.Module):
        heads = [head]
    others |= {id(p) for m in heads for p in m.parameters(recurse=False)}
    return lambda _, param: "muon" if param.dim() >= 2 and id(param) not in others else "adamw"


def as_groups(params: Any) -> list[Any]:
    """What an optimizer was given, as torch.optim.Optimizer takes it: a model becomes groups()."""
    if isinstance(params, nn.Module):
        params = groups(params)
    if isinstance(params, (torch.Tensor, dict)) or not isinstance(params, Iterable):
        raise TypeError(
            f"params is a {type(params).__name__}: give a model, model.named_parameters(), or"
            " groups"
        )
    # Copies: torch writes into the dicts that it is given.
    return [dict(one) if isinstance(one, dict) else one for one in params]


def check_group(group: Group) -> None:
    """ValueError for what cannot be kept, or would be kept and not done."""
    names = group.get("param_names")
    if names is None or len(names) != len(group["params"]):
        raise ValueError(
            "parameters have no names, under which their state is stored: give"
            " model.named_parameters(), or ebb.torch.groups(model)"
        )
    if group["algorithm"] not in ALGORITHMS:
        raise ValueError(f"algorithm={group['algorithm']!r}: 'muon' or 'adamw'")
    check_means_nothing(group)
    _check_settings(group)
    if group["algorithm"] == "muon":
        for name, param in zip(names, group["params"]):
            if param.dim() < 2:
                raise ValueError(
                    f"{name} has {param.dim()} dimensions, and Muon takes matrices: give it to a"
                    " group with algorithm='adamw', or let ebb.torch.groups(model) divide them"
                )


def _check_settings(group: Group) -> None:
    known = _preset_settings() if group["algorithm"] == "muon" else ()
    for key in more_settings(group):
        if key not in known:
            near = difflib.get_close_matches(key, [*OURS, *known], 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            algorithm = group["algorithm"]
            raise ValueError(f"a group has {key!r}, which is no setting of {algorithm}{meant}")


@functools.cache
def _preset_settings() -> tuple[str, ...]:
    """What `python -m ebb presets` lists."""
    return tuple({key: None for preset in ebb.about()["presets"] for key in preset["settings"]})


def check_means_nothing(group: Group) -> None:
    """ValueError for a setting of another optimizer that would change the result."""
    for key, wanted in _MUST_BE.items():
        if group.get(key, wanted) != wanted:
            raise ValueError(f"{key}={group[key]!r} would change the result, and is not made")


def more_settings(group: Group) -> dict[str, str]:
    """What a group says beyond our own keys: settings as a store names them, such as "precision".
    The engine refuses those that nobody knows."""
    others = {*OURS, *_MUST_BE, *_ANY, *_SCHEDULERS}
    return {key: str(value) for key, value in group.items() if key not in others}
