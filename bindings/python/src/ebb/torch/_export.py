"""A generation of the state, written in another format."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Protocol

from ebb import _library

from ._engine import Engine
from ._world import World


class Exporting(Protocol):
    """What an export needs of an open engine."""

    engine: Engine
    world: World

    def agreed(self, mine: bool) -> bool: ...


class Export:
    """[C] Pins the committed generation on all ranks, and begins to write it on rank 0, on a thread
    of its own. Each rank closes it."""

    def __init__(self, of: Exporting, path: str, format: str, world: int) -> None:
        self._of = of
        self._error: Exception | None = None
        self._pinned = of.world.together(of.engine.pin)
        self._writer = threading.Thread(target=self._write, args=(path, format, world))
        if of.world.rank == 0:
            self._writer.start()

    def _write(self, path: str, format: str, world: int) -> None:
        try:
            _library.call(
                "ebb_pinned_write", self._pinned, format.encode(), world, path.encode(), 1, None
            )
        except Exception as error:
            self._error = error

    def ended(self) -> bool:
        """[C] Whether it is written, or will not be."""
        return self._of.agreed(not self._writer.is_alive())

    def wait(self) -> None:
        """[C] Until it has ended."""
        while not self.ended():  # often enough that no rank is taken for one that is silent
            time.sleep(0.05)

    def close(self) -> Exception | None:
        """What went wrong, on the rank that writes; there it waits."""
        if self._writer.ident is not None:
            self._writer.join()
        _library.call("ebb_pinned_close", self._pinned)
        return self._error


class Exports:
    """An optimizer's: one at a time. What goes wrong with one that nobody waits for is said."""

    def __init__(self) -> None:
        self._under_way: Export | None = None

    def begin(self, of: Exporting, path: str, format: str, world: int, wait: bool) -> None:
        """[C] Of the committed generation."""
        self._under_way = Export(of, path, format, world)
        if wait:
            self._under_way.wait()
            export, self._under_way = self._under_way, None
            of.world.together(lambda: _raise_if(export.close()))

    def finish(self) -> bool:
        """[C] Waits for the one that is under way; whether there was one."""
        if self._under_way is None:
            return False
        self._under_way.wait()
        self.close()
        return True

    def look(self) -> None:
        """[C] Closes one that has ended."""
        if self._under_way is not None and self._under_way.ended():
            self.close()

    def close(self) -> None:
        if self._under_way is None:
            return
        export, self._under_way = self._under_way, None
        error = export.close()
        if error is not None:
            warnings.warn(f"ebb.torch: export(): {error}", RuntimeWarning, stacklevel=6)


def _raise_if(error: Exception | None) -> None:
    if error is not None:
        raise error
