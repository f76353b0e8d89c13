"""What is said once, as a RuntimeWarning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor


class Said:
    """One optimizer's."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def once(self, key: str, text: str, above: int = 5) -> None:
        """`above`: which of the callers' lines is named."""
        if key not in self._keys:
            self._keys.add(key)
            warnings.warn(f"ebb.torch: {text}", RuntimeWarning, stacklevel=above)

    def frozen(self, params: Sequence[Tensor]) -> None:
        """Where parameters that need no gradient take a part of the state that matters."""
        elems = sum(param.numel() for param in params)
        frozen = [param.numel() for param in params if not param.requires_grad]
        if sum(frozen) * 10 > elems:
            self.once(
                "frozen",
                f"{len(frozen)} of {len(params)} parameters, {sum(frozen) / elems:.0%} of all"
                " elements, need no gradient, and have state and disk all the same:"
                " ebb.torch.groups(model, frozen=False) leaves them out, for good",
                6,
            )

    def lost_counts(self, steps: int) -> None:
        self.once(
            "lost counts",
            "the store is one of 0.1.0's ebb.swap.Paged, whose counts of steps are lost: each"
            f" parameter has {steps}, those that were stepped less often, too. The state_dict() of"
            " that version has them: load_state_dict() takes it",
            6,
        )

    def skipped(self, names: Sequence[str], gradients: Sequence[Tensor | None]) -> None:
        if "skipped" in self._keys:
            return
        every = zip(names, gradients)
        bad = [name for name, g in every if g is not None and not bool(g.isfinite().all())]
        self.once(
            "skipped",
            "a step was skipped, and changed nothing: a gradient is not finite"
            f" ({bad[0] if bad else 'on another rank, or their norm'}); opt.last.skipped says it of"
            " each step",
            6,
        )
