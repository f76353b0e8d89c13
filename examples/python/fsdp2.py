"""FSDP2 on any number of ranks; a run that is killed goes on at its last snapshot, on as many ranks
or others.

torchrun --nproc-per-node 2 fsdp2.py SWAP STEPS"""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ebb.torch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 64))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
groups = ebb.torch.groups(model, muon=dict(lr=0.02), adamw=dict(lr=3e-3))
optimizer = ebb.torch.Muon(groups, swap=sys.argv[1], budget="least", resume="store", max_norm=1.0)
optimizer.open()  # the weights of the last snapshot come back here
for step in range(optimizer.steps, int(sys.argv[2])):
    x = torch.randint(0, 64, (240,), generator=torch.Generator().manual_seed(step))[rank::world]
    loss = F.cross_entropy(model(x), (x * 7 + 1) % 64)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if optimizer.steps % 20 == 0:
        optimizer.snapshot()  # beside the next steps; kill it whenever you like
if rank == 0:
    print(optimizer.origin)
    print(f"step {optimizer.steps}: norm {optimizer.last.norm:.4f}, loss {loss.item():.4f}")
optimizer.snapshot(wait=True)
optimizer.close()
dist.destroy_process_group()
