"""gloo_exchange.py WORLD BYTES REPEATS: as ebb-exchange, with gloo's all_to_all_single."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world, bytes_of_all, repeats):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["EBB_PORT"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    part = bytes_of_all // world
    out = torch.ones(part * world, dtype=torch.uint8)
    into = torch.zeros_like(out)
    dist.all_to_all_single(into, out)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        dist.all_to_all_single(into, out)
    dist.barrier()
    seconds = (time.perf_counter() - begin) / repeats
    if rank == 0:
        print(f"{seconds:.9f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    world, bytes_of_all, repeats = map(int, sys.argv[1:])
    os.environ.setdefault("EBB_PORT", str(20000 + os.getpid() % 20000))
    mp.spawn(run, args=(world, bytes_of_all, repeats), nprocs=world)
