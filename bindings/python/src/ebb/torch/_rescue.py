"""Ways on where the disk failed in the middle of a step: what is in memory is not lost."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ._run import Run


class Rescue:
    """What Optimizer has for that. Each is [C], and all ranks call the same."""

    @torch.no_grad()
    def continue_step(self) -> None:
        """Goes on with the step that an error of the disk stopped, when the disk works again: the
        bits are those of a step that nothing stopped. Its gradients are as they were: zero_grad()
        comes behind it."""
        began = time.perf_counter()
        with self._entered("continue_step"):
            run = self._opened()
            self._note(run, run.continue_step(), (), began)

    @torch.no_grad()
    def abandon_step(self) -> None:
        """Goes back to the last snapshot, in this process: state, and parameters."""
        with self._entered("abandon_step"):
            self._opened().abandon_step()

    @torch.no_grad()
    def save_to(self, swap: str | os.PathLike[str] | list[str | os.PathLike[str]]) -> None:
        """The state goes on in another swap directory, or one for each rank, which must hold none;
        also that of a step that was stopped, which continue_step() then goes on with. Files of the
        old one stay as they were."""
        with self._entered("save_to"):
            self._opened().save_to(swap)

    # --- of Optimizer --------------------------------------------------------------------------

    def _opened(self) -> Run:
        raise NotImplementedError

    def _entered(self, what: str) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def _note(
        self, run: Run, result: Any, gradients: Sequence[Tensor | None], began: float
    ) -> None:
        raise NotImplementedError
