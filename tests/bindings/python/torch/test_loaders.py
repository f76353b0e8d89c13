"""Modules that load_into() filled, beside what the own loader of the framework that wrote the
checkpoint has of it, in one process."""
import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

import ebb
from opened import FIXTURES, Holder, holds
from worlds import Skip, row, run_rows, same_bits

# What a framework's own loader has, by its names.
Loader = Callable[[Path, ebb.Checkpoint], Mapping[str, Tensor]]


def key_of(ref: ebb.TensorRef) -> str:
    return ref.name if ref.key is None else ref.key


def compare(path: Path, theirs: Loader, key=key_of) -> int:
    """The parameters and buffers of one fixture that both have."""
    checkpoint = ebb.open(path)
    weights = checkpoint.weights()
    if not holds(weights):
        raise Refused("no module has such names")
    model = Holder(weights)
    weights.load_into(model)
    found = theirs(path, checkpoint)
    same = 0
    for name, tensor in model.state_dict().items():
        if name not in checkpoint or key(checkpoint[name]) not in found:
            continue  # what is tied stands in the file under one of its names
        wanted = found[key(checkpoint[name])]
        assert same_bits(tensor, wanted.to(tensor.dtype).reshape(tensor.shape)), (path, name)
        same += 1
    assert same, path
    return same


def compare_all(paths, theirs: Loader, most_left_out: int, key=key_of) -> str:
    """What the loader itself refuses is left out, by name."""
    same, left_out = 0, []
    for path in paths:
        if path.parent.name.startswith("bad_"):
            continue
        try:
            same += compare(path, theirs, key)
        except ebb.Unsupported:
            left_out.append(f"{path.parent.name} (no model)")
        except Refused as why:
            left_out.append(f"{path.parent.name} ({why})")
    assert len(left_out) <= most_left_out, left_out
    return f"{same} parameters and buffers; without {', '.join(left_out) or 'none'}"


class Refused(Exception):
    """By the framework's own loader."""


@contextlib.contextmanager
def refusing():
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (Exception, dcp.api.CheckpointException) as why:
        raise Refused(type(why).__name__) from why


def by_dcp(path: Path, checkpoint: ebb.Checkpoint, reader=None) -> dict[str, Tensor]:
    if reader is None and not (path / ".metadata").exists():
        raise Refused("one process reads the part of rank 0 alone")
    wanted = {key_of(ref): torch.zeros(ref.shape, dtype=getattr(torch, ref.dtype))
              for ref in checkpoint.values()}
    with refusing():
        dcp.load(wanted, checkpoint_id=path, storage_reader=reader, no_dist=True)
    return wanted


@row("DCP's own load() has the same bits", limit=120)
def of_dcp() -> str:
    return compare_all(sorted(FIXTURES.glob("dcp/*/data")), by_dcp, 8)


DCP_SLICES = "DCP_SHARDING_INFO"  # of files in which ranks have rows of a tensor


def by_safetensors(path: Path, checkpoint: ebb.Checkpoint) -> dict[str, Tensor]:
    from safetensors import safe_open
    from safetensors.torch import load_file
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if any(DCP_SLICES in (safe_open(file, "pt").metadata() or ()) for file in files):
        return by_dcp(path, checkpoint, dcp.HuggingFaceStorageReader(path))
    with refusing():
        return {name: t for file in files for name, t in load_file(file).items()}


@row("safetensors' own load_file() has the same bits")
def of_safetensors() -> str:
    return compare_all(sorted(FIXTURES.glob("safetensors/*/data")), by_safetensors, 8)


def flattened(value, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {prefix: value.detach()}
    if isinstance(value, Mapping):
        return {name: t for key, one in value.items()
                for name, t in flattened(one, f"{prefix}.{key}" if prefix else str(key)).items()}
    return {}


def by_torch(path: Path, checkpoint: ebb.Checkpoint) -> dict[str, Tensor]:
    with refusing():
        files = [path] if path.is_file() else sorted(path.glob("*.p*t*"))
        return {name: t for file in files
                for name, t in flattened(torch.load(file, weights_only=True)).items()}


@row("torch.load() has the same bits")
def of_torch() -> str:
    # Of a file for each rank it has DTensors on a mesh that is not here.
    paths = [one for one in sorted(FIXTURES.glob("torch/*/data"))
             if not one.parent.name.startswith("ranks_")]
    return compare_all(paths, by_torch, 8)


def by_deepspeed(path: Path, checkpoint: ebb.Checkpoint) -> dict[str, Tensor]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    with refusing():
        return get_fp32_state_dict_from_zero_checkpoint(path)


@row("DeepSpeed's own zero_to_fp32 has the same bits", limit=120)
def of_deepspeed() -> str:
    try:
        import deepspeed  # noqa: F401
    except ImportError:
        raise Skip("DeepSpeed is not installed") from None
    # It knows ZeRO alone; what else there is, the engine itself judges (judge_ds.py).
    others = ("autotp_", "moe_", "pp_", "pptp_", "universal_", "z0_")
    paths = [one for one in sorted(FIXTURES.glob("deepspeed/*/data"))
             if not one.parent.name.startswith(others)]
    return compare_all(paths, by_deepspeed, 8, key=lambda ref: ref.name)


if __name__ == "__main__":
    run_rows()
