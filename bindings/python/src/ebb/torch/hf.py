"""ebb.torch in transformers' Trainer: what makes the optimizer, and what readies it for a save.

>>> Trainer(model=model, args=args, train_dataset=data,
...         optimizer_cls_and_kwargs=(ebb.torch.hf.Factory, dict(
...             swap="/nvme/run7", budget="4GiB", muon=dict(lr=0.02), adamw=dict(lr=3e-4))),
...         callbacks=[ebb.torch.hf.Callback()])
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from ._groups import groups
from ._muon import Muon
from ._optimizer import Optimizer

__all__ = ["Callback", "Factory"]


class Factory:
    """What Trainer calls with the model, once: Muon over groups(model, muon=, adamw=, rule=) of the
    parameters that are trained. All other arguments are Muon's."""

    def __call__(
        self, model: nn.Module, *, muon: dict[str, Any] | None = None,
        adamw: dict[str, Any] | None = None, rule: Any = "hidden", **options: Any,
    ) -> Muon:  # fmt: skip
        divided = groups(model, muon=muon, adamw=adamw, rule=rule, frozen=False)
        return Muon(divided, **options)


class Callback(TrainerCallback):
    """Collects the state on rank 0 before a save, where that needs all ranks: under DDP rank 0
    saves alone. Logs with each loss the gradient's norm before clipping by max_norm=, and the
    seconds that the last step took. Comes after callbacks that ask for a save of their own."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if control.should_save:
            self._consolidate(given)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if control.should_save:
            self._consolidate(given)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        # Whether this was the best is decided behind this call, with none before the save.
        if args.save_strategy == SaveStrategy.BEST:
            self._consolidate(given)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, Any] | None = None, **given: Any,
    ) -> None:  # fmt: skip
        optimizer = _own(given.get("optimizer"))
        if logs is None or "loss" not in logs or optimizer is None:
            return
        last = {"ebb_norm": optimizer.last.norm, "ebb_step_seconds": optimizer.last.seconds}
        logs.update(last)
        state.log_history[-1].update(last)

    def _consolidate(self, given: dict[str, Any]) -> None:
        optimizer = _own(given.get("optimizer"))
        if optimizer is not None:
            optimizer.consolidate_state_dict()


def _own(optimizer: Any) -> Optimizer | None:
    """Ebb's, below what accelerate wraps around it."""
    while optimizer is not None and not isinstance(optimizer, Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer
