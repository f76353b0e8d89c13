"""A small model whose optimizer state lies on disk; type it again, and it goes on where it stopped.

python plain.py SWAP"""
import sys

import torch
import torch.nn.functional as F

import ebb.torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 64))
groups = ebb.torch.groups(model, muon=dict(lr=0.02), adamw=dict(lr=3e-3))
print(groups)
with ebb.torch.Muon(groups, swap=sys.argv[1], budget="least", resume="store") as optimizer:
    optimizer.open()  # the weights of the last snapshot come back here
    print(optimizer.origin)
    for step in range(optimizer.steps, optimizer.steps + 50):
        x = torch.randint(0, 64, (256,), generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(x), (x * 7 + 1) % 64)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.snapshot(wait=True)
    print(f"step {optimizer.steps}: loss {loss.item():.4f}")
