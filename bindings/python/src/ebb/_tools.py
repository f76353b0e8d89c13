"""ckpt-inspect and ckpt-convert: found, run, and their answers as Python has them."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from . import _library, errors


def find(name: str) -> str:
    """Where EBB_TOOLS says; where pip put it; beside the library of a source tree; or on PATH."""
    for place in _library.programs():
        if (place / name).is_file():
            return str(place / name)
    found = shutil.which(name)
    if found is None:
        raise errors.Unsupported(
            f"there is no {name} beside {_library.library()._name}, nor on PATH",
            hint="EBB_TOOLS names the folder that it lies in",
        )
    return found


def inspect(*arguments: str) -> dict[str, Any]:
    return _run("ckpt-inspect", arguments)


def convert(*arguments: str) -> dict[str, Any]:
    return _run("ckpt-convert", arguments)


def _run(name: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """What it says as JSON, whatever it found; ebb.Error where it could not look."""
    ended = subprocess.run(
        [find(name), *arguments, "--json"], check=False, capture_output=True, text=True,
        errors="replace",
    )  # fmt: skip
    try:
        said: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise errors.Internal(
            f"{name} ended with {ended.returncode}, and said: {ended.stderr.strip()}"
        ) from None
    if said["schema"].startswith("ebb.error/"):
        raise errors.from_tool(said["error"])
    return said
