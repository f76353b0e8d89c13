"""ebb.torch: Muon and AdamW for PyTorch, whose state lies on NVMe. docs/python.md is its manual."""

from ._engine import Plan
from ._groups import groups
from ._muon import AdamW, Muon
from ._optimizer import Optimizer, StepInfo

__all__ = ["AdamW", "Muon", "Optimizer", "Plan", "StepInfo", "groups"]
