"""Muon and AdamW: their arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ._groups import named_parameters
from ._optimizer import Optimizer
from ._options import Options
from ._settings import OURS, check_arguments


class Muon(Optimizer):
    """Muon for matrices, AdamW for the rest, as one optimizer whose state lies in `swap` and passes
    through `budget` bytes of memory. Its defaults and its formula (preset "torch") are those of
    torch.optim.Muon.

    >>> opt = ebb.torch.Muon(ebb.torch.groups(model), swap="/nvme/run7", budget="4GiB")

    params: a model; named parameters; or groups with "params" as (name, parameter) pairs, or with
      "param_names". A group's "algorithm" is "muon" or "adamw"; its other keys are settings: ours,
      or as `python -m ebb presets` names them.
    swap: a directory, or one for each rank. It is made where its parent exists.
    budget: bytes that this rank's engine may take: 8 << 30, "8GiB", "25%" of the state, "least",
      "all".
    device_budget: bytes of a GPU's memory, or "all" that it takes: the GPU makes the steps then,
      that of the parameters, or where they are the host's, the current one; None: the host does.
    masters: "engine": fp32, beside the state; "halves": of bf16 parameters, each is the upper half
      of its master: half the bytes, the same bits; "parameters": of fp32 parameters, each is its
      master: none of the bytes, the same bits; "auto": "parameters" where all are fp32, "halves"
      where all are bf16, and the host makes the steps.
    placement: where Muon's state lies: "shard": each rank's part with it; "owner": whole matrices
      with one rank each; "auto": "shard" for DTensors.
    process_group: the ranks that share the parameters; None: the default group, or this process.
    resume: what to do with a store that lies in `swap`: None: an error that says its step, unless
      load_state_dict() comes first; "store": go on at its last snapshot, the parameters get its
      weights; "discard": begin with the parameters; it goes when the new one is committed.
    checkpoint: what state_dict() holds: "tensors", or "reference": the store's name and step.
    max_norm: gradients are clipped to this norm of all of them; 0: not.
    threads: that compute on this rank. slots, tile, chunk: docs/python.md.
    peer_timeout: how long one rank may keep the others waiting; None: 30 minutes.
    check_parameters: edits of parameters are found by checksums, not by version counters alone.
    drop_unknown: a store's state of parameters that are not here may go; else it is refused.
    settings: of Muon's groups: those of a preset; torch.optim.Muon's ns_coefficients, ns_steps and
      adjust_lr_fn. Newton-Schulz' eps is a group's; this one is AdamW's.
    """

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, preset: str = "torch", split: str | None = None, swap: Any,
        budget: int | str = "25%", device_budget: int | str | None = None, masters: str = "auto",
        momentum_dtype: torch.dtype = torch.float32, placement: str = "auto",
        process_group: Any = None, resume: str | None = None, checkpoint: str = "tensors",
        max_norm: float = 0.0, threads: int | None = None, slots: int = 3, tile: int | str = "4MiB",
        chunk: int | str = "256MiB", peer_timeout: timedelta | None = None,
        check_parameters: bool = False, drop_unknown: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        check_arguments("Muon", settings)
        values = ("muon", lr, weight_decay, momentum, nesterov, betas, eps, preset, split)
        options = Options(
            swap, budget, masters, momentum_dtype, placement, process_group, resume, checkpoint,
            max_norm, threads, slots, tile, chunk, peer_timeout, check_parameters, device_budget,
            drop_unknown,
        )  # fmt: skip
        super().__init__(params, dict(zip(OURS, values)), options, settings)


class AdamW(Optimizer):
    """torch.optim.AdamW whose state lies in `swap`. Arguments beside its own: as Muon's. settings:
    torch's that change no result here (foreach, fused, capturable)."""

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, swap: Any, budget: int | str = "25%",
        device_budget: int | str | None = None, masters: str = "auto", placement: str = "auto",
        process_group: Any = None,
        resume: str | None = None, checkpoint: str = "tensors", max_norm: float = 0.0,
        threads: int | None = None, slots: int = 3, tile: int | str = "4MiB",
        chunk: int | str = "256MiB", peer_timeout: timedelta | None = None,
        check_parameters: bool = False, drop_unknown: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        check_arguments("AdamW", settings)
        if isinstance(params, torch.nn.Module):
            params = named_parameters(params)
        values = ("adamw", lr, weight_decay, 0.95, True, betas, eps, "torch", None)
        options = Options(
            swap, budget, masters, torch.float32, placement, process_group, resume, checkpoint,
            max_norm, threads, slots, tile, chunk, peer_timeout, check_parameters, device_budget,
            drop_unknown,
        )  # fmt: skip
        super().__init__(params, dict(zip(OURS, values)), options, {})
