"""ckpt-inspect and ckpt-convert: found, run, and their answers as Python has them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _library, errors
from ._progress import Progress


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


Told = Callable[[dict[str, Any]], None]


def inspect(*arguments: str) -> dict[str, Any]:
    return _answer("ckpt-inspect", arguments)


def convert(*arguments: str, progress: Progress) -> dict[str, Any]:
    return _answer("ckpt-convert", arguments, progress.told)


def text_of(*arguments: str) -> str:
    """What ckpt-inspect shows people; ebb.Error where it has nothing to show."""
    shown = _run("ckpt-inspect", arguments)
    if not shown.out:
        raise errors.Internal(shown.complaint)
    return shown.out


class _Ended(NamedTuple):
    out: str
    complaint: str


def _answer(name: str, arguments: tuple[str, ...], told: Told = lambda _: None) -> dict[str, Any]:
    """What it says as JSON, whatever it found; ebb.Error where it could not look."""
    ended = _run(name, (*arguments, "--json"), told)
    try:
        said: dict[str, Any] = json.loads(ended.out)
    except ValueError:
        raise errors.Internal(ended.complaint) from None
    if said["schema"].startswith("ebb.error/"):
        raise errors.from_tool(said["error"])
    return said


def _run(name: str, arguments: tuple[str, ...], told: Told = lambda _: None) -> _Ended:
    """`told` hears how far it is; where that raises, or Ctrl-C comes, the program has ended when
    this does."""
    complaints = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out,
        subprocess.Popen(
            [find(name), *arguments], stdout=out, stderr=subprocess.PIPE, encoding="utf-8",
            errors="replace",
        ) as running,
    ):  # fmt: skip
        try:
            for line in running.stderr or ():
                if line.startswith('{"schema": "ebb.progress/'):
                    told(json.loads(line))
                else:
                    complaints.append(line)
            running.wait()
        except BaseException:
            running.terminate()
            raise
        out.seek(0)
        said = out.read()
    why = "".join(complaints).strip()
    return _Ended(said, f"{name} ended with {running.returncode}, and said: {why}")
