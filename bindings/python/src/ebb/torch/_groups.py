"""Which parameters Muon trains, and groups of named parameters as an optimizer keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ._settings import ALGORITHMS, Group, check_means_nothing, fixed, strange_keys

Rule = Callable[[str, torch.Tensor], "str | None"]

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
    frozen: bool = True,
) -> Groups:
    """A model's parameters, named, as a group for Muon and one for AdamW.

    muon, adamw: settings of theirs, such as dict(lr=0.02).
    rule: "hidden": Muon takes parameters of two and more dimensions that are neither an embedding's
      nor the output head's. A head is what the model calls so (get_output_embeddings()), or a
      linear layer with as many outputs as the largest embedding has entries. Or a function of a
      name and its parameter that answers "muon", "adamw", or None, which leaves it out.
    frozen: whether parameters that need no gradient now are among them, and have state: to be
      trained later.
    """
    if isinstance(rule, str):
        if rule != "hidden":
            raise ValueError(f"rule={rule!r}: write 'hidden', or a function")
        rule = _hidden(model)
    split: dict[str, list[tuple[str, torch.Tensor]]] = {name: [] for name in ALGORITHMS}
    for name, param in named_parameters(model):
        algorithm = rule(name, param) if frozen or param.requires_grad else None
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


def named_parameters(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """A model's, by its own names, whatever it is wrapped in."""
    return [(_own_name(model, name), param) for name, param in model.named_parameters()]


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


def check_group(group: Group) -> list[str]:
    """ValueError for what cannot be kept, or would be kept and not done. Keys of it that are the
    user's own."""
    names = group.get("param_names")
    if names is None or len(names) != len(group["params"]):
        raise ValueError(
            "parameters have no names, under which their state is stored: give"
            " model.named_parameters(), or ebb.torch.groups(model)"
        )
    if group["algorithm"] not in ALGORITHMS:
        raise ValueError(f"algorithm={group['algorithm']!r}: 'muon' or 'adamw'")
    check_means_nothing(group)
    fixed(group)
    if group["algorithm"] == "muon":
        for name, param in zip(names, group["params"]):
            if param.dim() < 2:
                raise ValueError(
                    f"{name} has {param.dim()} dimensions, and Muon takes matrices: give it to a"
                    " group with algorithm='adamw', or let ebb.torch.groups(model) divide them"
                )
    return strange_keys(group)


def check_names(groups: Iterable[dict[str, Any]]) -> None:
    """ValueError for one that two parameters have."""
    names = [name for group in groups for name in group["param_names"]]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two parameters are named {twice}")
