"""What a trainer wants back after a resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from ._engine import Engine

OURS = "ebb.torch: "  # what keys of this package's own begin with


class Blobs(MutableMapping[str, bytes]):
    """What a trainer wants back after a resume (data position, RNG): bytes by name, at most 256 KiB
    in all, stored with every snapshot."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def __setitem__(self, key: str, value: bytes) -> None:
        given = bytes(value)
        if not given:
            raise ValueError(f"blob {key!r} has no bytes")
        self._engine().set_blob(key, given)

    def __getitem__(self, key: str) -> bytes:
        found = self._engine().blob(key)
        if found is None:
            raise KeyError(key)
        return found

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._engine().set_blob(key, b"")

    def __iter__(self) -> Iterator[str]:
        keys = self._engine().about()["blobs"]
        return (key for key in keys if not key.startswith(OURS))

    def __len__(self) -> int:
        return sum(1 for _ in self)
