"""Bytes as people write them: 8 << 30, "8GiB", "300MB"."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def bytes_of(size: int | str, what: str) -> int:
    """`size` in bytes; ValueError names `what` where it is none."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    if isinstance(size, str):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", size.strip())
        if found is not None and found[2].lower() in _UNITS:
            return int(float(found[1]) * _UNITS[found[2].lower()])
    raise ValueError(f"{what}={size!r} is no size: write 8 << 30, or '8GiB'")
