"""Hooks of torch.optim.Optimizer.register_state_dict_pre_hook() and its kin, for an optimizer with
a state dict of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_Dict = dict[str, Any]


def calls_state_dict_hooks(method: Callable[[Any], _Dict]) -> Callable[[Any], _Dict]:
    """Of state_dict(): as torch calls them."""

    @functools.wraps(method)
    def call(self: Any) -> _Dict:
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        made = method(self)
        for behind in self._optimizer_state_dict_post_hooks.values():
            other = behind(self, made)
            made = made if other is None else other
        return made

    return call


def calls_load_state_dict_hooks(
    method: Callable[[Any, _Dict], None],
) -> Callable[[Any, _Dict], None]:
    """Of load_state_dict(): as torch calls them, with a shallow copy of what was given."""

    @functools.wraps(method)
    def call(self: Any, state_dict: _Dict) -> None:
        given = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            other = before(self, given)
            given = given if other is None else other
        method(self, given)
        for behind in self._optimizer_load_state_dict_post_hooks.values():
            behind(self)

    return call
