"""torch.optim.Muon in torchtitan, which has none of its own: for jobs and judges."""
from dataclasses import dataclass

import torch
from torchtitan.components.optimizer import OptimizersContainer


class TorchMuon(OptimizersContainer):
    """torchtitan has no torch.optim.Muon; this is how one is added."""
    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name):
        if name == "Muon":
            return lambda groups, **_: torch.optim.Muon(groups)
        return OptimizersContainer._resolve_optimizer_factory(name)
