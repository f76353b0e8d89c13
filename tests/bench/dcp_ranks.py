"""torch.distributed.checkpoint by gloo ranks: the peer of tests/bench/ranks.

dcp_ranks.py save|load DIRECTORY WORLD BYTES
Prints the seconds from when all ranks are ready to when the last is through (what was saved is
synced to the disk), and the peak memory of all ranks in MiB, the state among it.
"""
import os
import sys
import time

import resource
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._tensor import DeviceMesh, DTensor, Shard

TENSORS, COLUMNS = 16, 4096


def state_of(rank, world, rows, save):
    mesh = DeviceMesh("cpu", list(range(world)))
    sizes = [len(part) for part in torch.arange(rows).chunk(world)] + [0] * world
    state = {}
    for i in range(TENSORS):
        local = torch.empty(sizes[rank], COLUMNS)
        local.fill_(float(i * world + rank) if save else -1.0)  # touched
        state[f"layers.{i}.weight"] = DTensor.from_local(
            local, mesh, [Shard(0)], shape=torch.Size([rows, COLUMNS]), stride=(COLUMNS, 1),
            run_check=False)
    return state


def work(rank, verb, directory, world, size, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    state = state_of(rank, world, size // TENSORS // COLUMNS // 4, verb == "save")
    dist.barrier()
    start = time.perf_counter()
    if verb == "save":
        dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, sync_files=True))
    else:
        dcp.load(state, storage_reader=dcp.FileSystemReader(directory))
    dist.barrier()
    seconds = time.perf_counter() - start
    if verb == "load":
        assert all((tensor.to_local() >= 0).all() for tensor in state.values())
    results.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    dist.barrier()
    dist.destroy_process_group()


def main():
    verb, directory, world, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    results = mp.get_context("spawn").SimpleQueue()
    port = 20000 + os.getpid() % 20000
    mp.spawn(work, (verb, directory, world, size, port, results), nprocs=world)
    found = [results.get() for _ in range(world)]
    print(f"{max(f[0] for f in found):.4f} {sum(f[1] for f in found) // 1024}")


if __name__ == "__main__":
    main()
