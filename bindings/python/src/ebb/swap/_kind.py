"""The class that is paged: makes optimizers of it, for parameters of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ebb.errors import Unsupported
from ebb.torch._placements import is_dtensor, local

from ._found import check_sparse, check_steps_alone, found_structure
from ._params import Param
from ._structure import Structure

Group = dict[str, Any]


def settings_of(group: Group) -> Group:
    return {k: v for k, v in group.items() if k not in ("params", "param_names")}


class Kind:
    """counted: by group, those of its numbers that the class' own steps change."""

    def __init__(self, kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> None:
        self._kind, self._settings = kind, settings
        self.name = getattr(kind, "__name__", repr(kind))
        self.counted: list[set[str]] = []
        self._groups: list[Group] = []  # their settings, before anyone changed them
        self._structures: dict[Any, Structure] = {}
        self._sparse: set[int] = set()  # groups that may have sparse gradients

    def add_group(self, group: Group) -> dict[str, Any]:
        """Gives it the settings that the class has and nobody gave; answers the class' defaults.
        Unsupported where such parameters cannot be paged."""
        stand_in = [torch.nn.Parameter(torch.zeros_like(local(p), device="meta"))
                    for p in group["params"][:1]]  # fmt: skip
        made = self._made({**settings_of(group), "params": stand_in})
        for key, value in settings_of(made.param_groups[0]).items():
            group.setdefault(key, value)
        self._groups.append(settings_of(group))
        number = len(self._groups) - 1
        shapes = {tuple(param.shape) for param in group["params"]}
        self.counted.append(
            check_steps_alone(lambda params: self.make(params, number), self.name, shapes)
        )
        return made.defaults

    def make(self, params: Sequence[Tensor], number: int) -> torch.optim.Optimizer:
        """For parameters of a group, as that was when it was added."""
        return self._made({**self._groups[number], "params": list(params)})

    def _made(self, group: Group) -> torch.optim.Optimizer:
        return self._kind([group], **self._settings)

    def structure(
        self, name: str, param: Tensor, number: int, gradient: Tensor | None = None
    ) -> Structure:
        """What it keeps of a parameter. None: its gradients lie as it does."""
        mine, shape = local(param), tuple(param.shape)
        strides = gradients = mine.stride()
        if is_dtensor(param):  # of all ranks' rows, one behind the other
            strides = gradients = torch.empty(shape, device="meta").stride()
        elif gradient is not None:
            gradients = gradient.stride()
        alike = (number, shape, strides, gradients, mine.dtype, mine.device)
        if alike not in self._structures:
            self._structures[alike] = found_structure(
                lambda params: self.make(params, number), shape, strides, gradients, mine, name
            )
        return self._structures[alike]

    def look_at_gradients(self, params: Sequence[Param]) -> None:
        """At the first of a parameter. State that is made of gradients lies as they do; what
        becomes of sparse ones is found out once."""
        for one in params:
            gradient, number = one.param.grad, one.group
            if gradient is None or one.looked_at or number in self._sparse:
                continue
            if gradient.layout is torch.strided:
                one.structure = self.structure(one.name, one.param, number, gradient)
                one.looked_at = True
                continue
            if gradient.layout is not torch.sparse_coo:
                raise Unsupported(f"{one.name}: its gradient is {gradient.layout}")
            make, shape = (lambda params: self.make(params, one.group)), tuple(one.param.shape)
            check_sparse(make, shape, gradient, one.name)
            self._sparse.add(number)
