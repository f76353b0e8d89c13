"""State of one's own in a swap directory: a SwapSpace for an optimizer that one writes, Paged for
one that torch, or a package, has."""

from ._paged import Paged
from ._space import Buffer, Lease, SwapSpace

__all__ = ["Buffer", "Lease", "Paged", "SwapSpace"]
