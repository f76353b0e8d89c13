"""`python -m ebb`: what was found on this machine. `python -m ebb presets`: what each preset of
Muon sets.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from importlib import metadata
from typing import Any

from . import about
from ._device import Device
from .errors import Error

WIDTH = 100
COLUMN = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ebb", description="What Ebb found on this machine."
    )
    parser.add_argument(
        "what", nargs="?", choices=["presets"], help="those of Muon, with all their settings"
    )
    what = parser.parse_args().what
    try:
        found = about()
    except ImportError as why:
        print(f"ebb: {why}", file=sys.stderr)
        return 1
    print(presets(found) if what == "presets" else overview(found))
    return 0


def overview(found: dict[str, Any]) -> str:
    """A line for each thing, and what it means."""
    names = ", ".join(preset["name"] for preset in found["presets"])
    lines = [
        ("library", f"{found['library']}, version {found['version']}, ABI {found['abi']}"),
        ("I/O", io_meaning(found["io_backend"])),
        ("plugin", plugin_meaning(found["plugin"])),
        ("torch", torch_meaning()),
        ("presets", f"{names} (what they set: python -m ebb presets)"),
        ("formats", f"{', '.join(found['formats'])} (of checkpoints that Ebb reads)"),
    ]
    return "\n".join(entry(name, meaning) for name, meaning in lines)


def presets(found: dict[str, Any]) -> str:
    """Each preset: its name, whose defaults it has, its settings as a group takes them."""
    return "\n\n".join(
        "\n".join(
            [
                f"{preset['name']}: {preset['source']}",
                *(entry(f"  {name}", value) for name, value in preset["settings"].items()),
            ]
        )
        for preset in found["presets"]
    )


def io_meaning(backend: str) -> str:
    if backend == "io_uring":
        return "io_uring: the kernel reads and writes while steps compute"
    return f"{backend} (right, and slower than io_uring on fast disks)"


def plugin_meaning(plugin: str) -> str:
    if not plugin:
        return "none: steps are computed on the host (the wheel ebb-cuda, or ./dev build cuda)"
    try:
        return f"{plugin}: {Device(0).name} (computes steps where device_budget= is given)"
    except Error as why:
        return f"{plugin}, which is of no use here: steps are computed on the host ({why})"


def torch_meaning() -> str:
    try:
        return f"{metadata.version('torch')} (for ebb.torch)"
    except metadata.PackageNotFoundError:
        return "not installed for this Python; ebb.torch needs it, nothing else does"


def entry(name: str, text: str) -> str:
    """A name and, beside it, what is said of it."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{name + ' ':<{COLUMN}}",
        subsequent_indent=" " * COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    sys.exit(main())
