#!/usr/bin/env python3
"""Acceptance judge: does torch_checkpointing load a folder of ours, and is what it loads what expected.json says?

  judge_tck.py FOLDER EXPECTED WORLD [--same]   WORLD processes load it over gloo, each into tensors cut over a mesh
                                                of theirs; --same: as FSDP2 on as many ranks, where each loads its own
                                                files, numbers beside tensors included
Exit 0 and one line with counts when all match; exit 1 and one line per difference otherwise.
The package is made for GPUs: here a mesh of CPUs says it is one of theirs, as metadata of ours does.
Never point this at a checkpoint from elsewhere: its files are unpickled.
"""
import hashlib, json, os, socket, sys, traceback, warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

warnings.filterwarnings("ignore")


def sha(tensor):
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    raw = tensor.detach().contiguous().cpu()
    return hashlib.sha256(raw.view(-1).view(torch.uint8).numpy().tobytes() if raw.numel() else b"").hexdigest()


def told(value):
    """A value as expected.json has it."""
    if isinstance(value, dict) and "$tuple" in value:
        return tuple(told(item) for item in value["$tuple"])
    return bytes.fromhex(value["$bytes"]) if isinstance(value, dict) and "$bytes" in value else value


def leaves(value, above=()):
    """(path, leaf) of nested dicts and lists."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, above + (key,))
    else:
        yield above, value


def emptied(value, cut):
    """The same nesting with targets for its tensors, and numbers that are not those of the checkpoint."""
    if isinstance(value, dict):
        return {key: emptied(item, cut) for key, item in value.items()}
    if isinstance(value, list):
        return [emptied(item, cut) for item in value]
    if not isinstance(value, torch.Tensor):
        return type(value)(-7) if type(value) in (int, float) else value
    if hasattr(value, "_local_tensor"):
        return cut(value)
    return torch.zeros_like(value)


def on_gpus(resharder):
    """What it says of tensors it says as on a GPU, where all are but counters of steps."""
    from dataclasses import replace
    extract = resharder.extract_sharding_metadata

    def extract_there(self, item_key, item_value):
        return {path: known if path and str(path[-1]).split(".")[-1] == "step" else
                replace(known, mesh_spec=replace(known.mesh_spec, device_type="cuda"))
                for path, known in extract(self, item_key, item_value).items()}
    resharder.extract_sharding_metadata = extract_there


def load(folder, expected, world, same):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, zeros
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
    if same:
        on_gpus(DefaultResharder)
    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp")) if world % 2 == 0 else None

    def cut(tensor):
        if same or grid is None or tensor.dim() < 2:
            return zeros(tensor.shape, dtype=tensor.dtype, device_mesh=line, placements=[Shard(0)])
        places = [[Shard(0), Shard(1)], [Replicate(), Shard(1)]][tensor.shape[0] % 2]
        return zeros(tensor.shape, dtype=tensor.dtype, device_mesh=grid, placements=places)
    names = sorted({name.rsplit("_", 1)[0] for name in os.listdir(folder) if name.endswith("_0.pt")})
    saved = {name: torch.load(f"{folder}/{name}_0.pt", weights_only=False) for name in names}
    target = {name: emptied(value, cut) for name, value in saved.items()}
    dealt = {name: ItemSpec(resharder=DefaultResharder() if any(isinstance(leaf, torch.Tensor) for _, leaf in
                                                                leaves(value)) else None)
             for name, value in target.items()}
    if not same:        # items of one file a rank are there for as many ranks as saved it
        target = {name: value for name, value in target.items() if dealt[name].resharder}
    manager = CheckpointManager(CheckpointManager.Config(
        items=dealt if same else {name: dealt[name] for name in target}, save=SyncCheckpointSaverConfig(),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False)))
    loaded = manager.load(folder, target, strict=True)
    found = {".".join(map(str, path)): leaf for path, leaf in leaves(dict(loaded))}
    content = json.load(open(expected))
    wrong = []
    for tensor in content["tensors"]:
        leaf = found.get(tensor["key"], found.get("model." + tensor["key"]))    # a model lies in an item
        if not isinstance(leaf, torch.Tensor) or list(leaf.shape) != tensor["shape"] or sha(leaf) != tensor["sha256"]:
            wrong.append(f"{tensor['key']}: {type(leaf).__name__} differs")
    if same:
        for key, value in content["values"].items():
            value = told(value)
            if isinstance(value, (dict, list)):
                continue                      # a leaf for each of its own
            if key not in found or found[key] != value:
                wrong.append(f"{key}: {found.get(key)!r}, not {value!r}")
    return wrong, len(content["tensors"]), len(content["values"]) if same else 0


def entry(rank, folder, expected, world, same, port, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        out.put((rank, *load(folder, expected, world, same)))
    except Exception:
        out.put((rank, [traceback.format_exc()], 0, 0))
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder, expected, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
    same = "--same" in sys.argv[4:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = mp.get_context("spawn").Queue()
    mp.spawn(entry, args=(os.path.abspath(folder), expected, world, same, port, out), nprocs=world)
    said = [out.get() for _ in range(world)]
    for rank, wrong, _, _ in sorted(said):
        for line in wrong:
            print(f"DIFF rank {rank}: {line}")
    good = not any(wrong for _, wrong, _, _ in said)
    if good:
        print(f"OK torch_checkpointing loads {said[0][2]} tensors and {said[0][3]} values on {world} ranks")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
