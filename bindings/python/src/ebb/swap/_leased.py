"""Tensors of a lease: views of memory that is another buffer's when the lease is over, so that
whatever uses one then raises."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ebb.errors import StateError


# torch's names of what writes its first argument.
_IN_PLACE = re.compile(
    r"(?!__|requires_grad_|detach_|share_memory_).*[^_]_"
    r"|__setitem__|__i(add|sub|mul|((true|floor)?div)|mod|pow|and|x?or|[lr]shift)__"
)


class Term:
    """While it lasts, memory may be used. `what`: whose. modify: it may be written."""

    def __init__(self, what: str, modify: bool) -> None:
        self.what, self.modify = what, modify
        self.over = False
        self.memory: list[tuple[int, int]] = []  # addresses: first, behind the last

    def has(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(first <= address < end for first, end in self.memory)


class Leased(Tensor):
    """A tensor of a lease, or a view of one. What is computed with it is an ordinary tensor."""

    _term: Term

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        terms = {id(one): one for one in _terms((args, kwargs or {}))}
        for term in terms.values():
            if term.over:
                raise StateError(
                    f"a tensor of {term.what} was used when its lease was over",
                    hint="clone() keeps what is wanted behind it",
                )
        _check_written(func, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            answer = func(*args, **(kwargs or {}))
        return _views_marked(answer, terms.values())


def tensor_at(address: int | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor over memory that is somebody else's."""
    count = math.prod(shape)
    if count == 0 or not address:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def leased(tensor: Tensor, term: Term) -> Tensor:
    if tensor.numel() > 0:
        first = tensor.data_ptr()
        term.memory.append((first, first + tensor.numel() * tensor.element_size()))
    return _marked(tensor, term)


def _marked(tensor: Tensor, term: Term) -> Tensor:
    marked = tensor.as_subclass(Leased)
    marked._term = term
    return marked


def _check_written(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
    """StateError where a call is to write what may only be read."""
    name = getattr(func, "__name__", "")
    in_place = _IN_PLACE.fullmatch(name) is not None or kwargs.get("inplace") is True
    for term in _terms([args[:1] if in_place else (), kwargs.get("out")]):
        if not term.modify:
            raise StateError(
                f"{term.what} was acquired with modify=False, and {name} writes it",
                hint="acquire(buffer) is for what is changed; clone() gives a copy",
            )


def _terms(given: Any) -> Iterator[Term]:
    if isinstance(given, Leased):
        yield given._term
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _terms(one)
    elif isinstance(given, dict):
        yield from _terms(list(given.values()))


def _views_marked(answer: Any, terms: Any) -> Any:
    if isinstance(answer, Tensor) and not isinstance(answer, Leased):
        with torch._C.DisableTorchFunctionSubclass():
            term = next((one for one in terms if one.has(answer)), None)
            return answer if term is None else _marked(answer, term)
    if type(answer) in (list, tuple):
        return type(answer)(_views_marked(one, terms) for one in answer)
    return answer
