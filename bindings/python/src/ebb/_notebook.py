"""What a notebook shows of a checkpoint: the first screen of ckpt-inspect, and the shard map."""

from __future__ import annotations

import tempfile
from html import escape
from pathlib import Path

from . import _tools

_MOST_MAP_BYTES = 1 << 20  # a notebook keeps it


def page(path: str) -> str:
    screen = f"<pre>{escape(_tools.text_of(path))}</pre>"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "map.html")
        _tools.inspect(path, "--map", str(file))
        if file.stat().st_size > _MOST_MAP_BYTES:
            return f"{screen}<p>Its shard map: <code>ckpt-inspect ... --map map.html</code></p>"
        shard_map = file.read_text()
    return (
        f"{screen}<details><summary>Shard map</summary>"
        '<iframe sandbox style="width:100%;height:480px;border:0" '
        f'srcdoc="{escape(shard_map)}"></iframe></details>'
    )
