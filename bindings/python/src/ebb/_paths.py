"""Directories that somebody names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def directory_of(given: Any, what: str) -> Path:
    """Absolute: a program may change its own directory later. TypeError, ValueError name `what`
    where it names none."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise TypeError(f"{what}={given!r}: name a directory")
    path = os.fsdecode(given)
    if not path:
        raise ValueError(f"{what}={given!r}: name a directory; '.' is the present one")
    return Path(path).absolute()
