"""What is stored beside tensors, as Python's own: JSON has tuples, bytes and others as dicts with
one key, `{"$tuple": [...]}` (formats/catalog/value.h, value_json.h)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _dtypes


class StoredTensor(NamedTuple):
    """A tensor inside a value. dtype: as torch calls it. data: its elements, row-major and
    little-endian; None where they are known by their sha256 alone."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None
    sha256: str | None


class StoredObject(NamedTuple):
    """An object of a class of somebody's, which is not made. Of most, the name is all that is
    read."""

    type: str
    arguments: tuple[Any, ...]
    state: Any


def loads(text: str) -> Any:
    """JSON of the library's, with the values that it stands for."""
    return json.loads(text, object_hook=_value)


def _value(found: dict[str, Any]) -> Any:
    """What is inside has been made already."""
    if len(found) != 1:
        return found
    ((key, content),) = found.items()
    make = _TAGGED.get(key)
    return found if make is None else make(content)


def _dtype(name: str) -> str:
    known = _dtypes.named(name)
    return name if known is None else known.name


def _dict(pairs: list[list[Any]]) -> Any:
    """Of keys that JSON has no place for; tensors with their elements and objects with what they
    were made of are dicts with a key of their own."""
    mark = pairs[0][0] if len(pairs) == 1 else None
    if isinstance(mark, str) and mark in _MARKED:
        made = _MARKED[mark](pairs[0][1])
        if made is not None:
            return made
    return _hashed(dict, pairs)


def _hashed(make: Callable[[Any], Any], items: Iterable[Any]) -> Any:
    """A list where something among them is no key, as an object of a class of somebody's is not."""
    items = list(items)
    try:
        return make(items)
    except TypeError:
        return items


def _tensor(said: dict[str, Any]) -> StoredTensor:
    return StoredTensor(_dtype(said["dtype"]), tuple(said["shape"]), None, said["sha256"])


def _object(said: str | dict[str, Any]) -> StoredObject:
    if isinstance(said, str):
        return StoredObject(said, (), None)
    return StoredObject(said["class"], said.get("arguments", ()), said.get("state"))


def _whole_tensor(said: Any) -> StoredTensor | None:
    if not isinstance(said, dict) or set(said) != {"dtype", "shape", "bytes"}:
        return None
    return StoredTensor(said["dtype"], tuple(said["shape"]), said["bytes"], None)


def _whole_object(said: Any) -> StoredObject | None:
    return StoredObject(*said) if isinstance(said, list) and len(said) == 3 else None


_TAGGED: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$size": tuple,
    "$set": lambda items: _hashed(set, items),
    "$dict": _dict,
    "$bytes": bytes.fromhex,
    "$int": int,
    "$float": float,
    "$complex": lambda parts: complex(*parts),
    "$dtype": _dtype,
    "$tensor": _tensor,
    "$object": _object,
}
_MARKED: dict[str, Callable[[Any], Any]] = {
    "$ebb.tensor": _whole_tensor,
    "$ebb.object": _whole_object,
}
