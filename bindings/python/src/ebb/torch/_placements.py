"""How torch's placements lie over the ranks, in the engine's words (docs/python.md has the table).
What has none is refused by name, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ebb.errors import LayoutError, Unsupported

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:  # torch without torch.distributed: plain tensors are all there are
    DTensor = None  # type: ignore[assignment,misc]
_DTENSORS = () if DTensor is None else (DTensor,)

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, extents


def is_dtensor(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, _DTENSORS)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it, where it lies. Without gradients: under torch.no_grad()."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def alike(name: str, gradient: Any, param: Any, shape: torch.Size) -> torch.Tensor:
    """What this rank has of a gradient; LayoutError where that is not what it has of its parameter,
    which is of this shape. Each parameter pays for it in each step."""
    sharded = isinstance(param, _DTENSORS)  # is_dtensor() without its call
    if gradient.shape == shape and isinstance(gradient, _DTENSORS) == sharded:
        if not sharded:
            return gradient  # type: ignore[no-any-return]
        mine: torch.Tensor = gradient._local_tensor
        its, wanted = gradient._spec, param._spec
        same_mesh = its.mesh is wanted.mesh or its.mesh == wanted.mesh
        if (
            same_mesh
            and its.placements == wanted.placements
            and mine.shape == param._local_tensor.shape
        ):
            return mine
    check_unchanged(name, param, shape)
    raise LayoutError(
        f"{name}: its gradient is {_how(gradient)}, and it is {_how(param)}",
        hint="step after gradients are reduced, and placed as their parameters",
    )


def check_unchanged(name: str, param: Any, shape: torch.Size) -> None:
    """LayoutError where a parameter has another shape than when the engine opened."""
    if param.shape != shape:
        raise LayoutError(
            f"{name} is {_how(param)} now, and was {tuple(shape)} when the engine opened",
            hint="an optimizer for other parameters is a new one, with another swap directory",
        )


def _how(tensor: Any) -> str:
    placed = f" {tuple(tensor.placements)}" if is_dtensor(tensor) else ""
    return f"{tuple(tensor.shape)}{placed}"


@dataclass(frozen=True)
class Part:
    """How a parameter is cut over axes: rows of its first dimension over some of them, the last the
    fastest; before that a dimension each over `cuts`, in turn; over `copies` all have the same."""

    rows: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    cuts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Cut:
    """How all parameters are cut. Without axes: `shards` of rows, or whole on all (None), in so
    many copies."""

    shards: int | None = None
    copies: int = 1
    axes: tuple[tuple[str, int], ...] = ()
    parts: dict[str, Part] = field(default_factory=dict)  # by parameter, where there are axes


def cut_of(params: dict[str, torch.Tensor], ranks: tuple[int, ...]) -> Cut:
    """Of named parameters on a world of these ranks, by torch's numbers."""
    meshes = {p.device_mesh for p in params.values() if is_dtensor(p)}  # type: ignore[attr-defined]
    if not meshes:
        return Cut(copies=len(ranks))
    root = _root(meshes, ranks)
    simple = {_simple(p, ranks) for p in params.values()}
    if len(simple) == 1 and None not in simple:
        return next(cut for cut in simple if cut is not None).cut()
    axes = tuple(zip(_names(root), root.shape))
    parts = {name: _part(name, param, root) for name, param in params.items()}
    return Cut(axes=axes, parts=parts)


def box_of(param: torch.Tensor) -> Box:
    """Where this rank's elements of it lie, as torch has it."""
    if not is_dtensor(param):
        return (0,) * param.dim(), tuple(param.shape)
    mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
    shape, offset = compute_local_shape_and_global_offset(param.shape, mesh, placements)
    return tuple(offset), tuple(shape)


def check_boxes(name: str, rank: int, torchs: Box, ours: list[Box]) -> None:
    """LayoutError where the engine's plan means other elements than torch does."""
    wanted = [] if 0 in torchs[1] else [torchs]
    if ours != wanted:
        raise LayoutError(
            f"{name}: on rank {rank} torch has {_said(wanted)}, and the engine's plan"
            f" {_said(ours)}",
            hint="a defect of ebb.torch: please report the parameter's placements",
        )


@dataclass(frozen=True)
class _Simple:
    shards: int | None
    copies: int

    def cut(self) -> Cut:
        return Cut(self.shards, self.copies)


def _root(meshes: Any, ranks: tuple[int, ...]) -> Any:
    """A mesh that holds the world, of whose dimensions all others are made."""
    own = sorted(meshes, key=lambda mesh: -mesh.ndim)
    for mesh in [*own, *map(_whole, own)]:
        if _ranks(mesh) == ranks and all(_fits(one, mesh) for one in meshes):
            return mesh
    raise Unsupported(
        f"no device mesh holds the {len(ranks)} ranks, in their order, of which those of the"
        f" parameters are made: {', '.join(str(mesh) for mesh in own)}",
        hint="process_group= names the ranks that share parameters; else an optimizer a mesh",
    )


def _whole(mesh: Any) -> Any:
    """Of which this mesh has some dimensions; torch has no name for it."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources  # torch 2.9

    return _mesh_resources.get_root_mesh(mesh)


def _ranks(mesh: Any) -> tuple[int, ...]:
    return tuple(mesh.mesh.flatten().tolist())


def _fits(mesh: Any, root: Any) -> bool:
    sizes = dict(zip(_names(root), root.shape))
    named = all(sizes.get(name) == size for name, size in zip(_names(mesh), mesh.shape))
    return named or (mesh.ndim == 1 and _ranks(mesh) == _ranks(root))


def _names(mesh: Any) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or (f"dim{i}" for i in range(mesh.ndim)))


def _simple(param: Any, ranks: tuple[int, ...]) -> _Simple | None:
    """FSDP and HSDP over the whole world: what needs no axes."""
    if not is_dtensor(param) or _ranks(param.device_mesh) != ranks:
        return None
    placements = tuple(param.placements)
    if any(type(p) not in (Shard, Replicate) for p in placements):
        return None
    if placements == (Shard(0),):
        return _Simple(len(ranks), 1)
    if placements == (Replicate(), Shard(0)):
        return _Simple(param.device_mesh.size(1), param.device_mesh.size(0))
    return None


def _part(name: str, param: Any, root: Any) -> Part:
    if not is_dtensor(param):
        return Part(copies=_names(root))
    placed = dict(zip(_names(param.device_mesh), param.placements))
    if not set(placed) <= set(_names(root)):
        # One dimension over all ranks, which others divide (FSDP beside experts).
        if tuple(param.placements) == (Shard(0),):
            return Part(rows=_names(root))
        raise Unsupported(f"{name} is {tuple(param.placements)} over the mesh {param.device_mesh}")
    cuts, copies, strided = [], [], []
    for axis in _names(root):
        placement = placed.get(axis, Replicate())
        kind = type(placement).__name__
        if isinstance(placement, Partial):
            raise Unsupported(
                f"{name} is Partial over {axis}", hint="step after its sum has been reduced"
            )
        if kind == "_StridedShard":
            strided.append((axis, placement))
        elif isinstance(placement, Replicate):
            copies.append(axis)
        elif isinstance(placement, Shard):
            cuts.append((axis, placement.dim))
        else:
            raise Unsupported(f"{name} is {placement} over {axis}")
    for axis, placement in reversed(strided):
        _check_strided(name, param, placement)
        cuts.append((axis, placement.dim))
    return _put_together(tuple(copies), cuts)


def _check_strided(name: str, param: Any, placement: Any) -> None:
    """FSDP cut there what tensor parallelism, a later mesh dimension, had cut before."""
    if param.shape[placement.dim] % placement.split_factor != 0:
        raise Unsupported(
            f"{name} is {tuple(param.placements)}, and its {param.shape[placement.dim]} places of"
            f" dimension {placement.dim} do not divide evenly"
        )


def _put_together(copies: tuple[str, ...], cuts: list[tuple[str, int]]) -> Part:
    """`cuts` are in the order in which they cut. The last of the first dimension's are rows."""
    of_rows = [i for i, (_, dim) in enumerate(cuts) if dim == 0]
    if not of_rows:
        return Part((), copies, tuple(cuts))
    axis, _ = cuts.pop(of_rows[-1])
    return Part((axis,), copies, tuple(cuts))


def _said(boxes: list[Box]) -> str:
    if not boxes:
        return "nothing"
    return ", ".join(
        "[" + ", ".join(f"{o}:{o + e}" for o, e in zip(*box)) + "]" for box in boxes
    )
