"""Lightning with FSDP2 on 2 ranks; type it again with more steps, and it goes on where it was.

python lightning_fsdp2.py FOLDER STEPS"""
import sys
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import ebb.torch

folder, steps = Path(sys.argv[1]), int(sys.argv[2])


class Model(lightning.LightningModule):
    def configure_model(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64))
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, x, _):
        return F.cross_entropy(self.net(x), (x * 7 + 1) % 64)

    def configure_optimizers(self):
        groups = ebb.torch.groups(self, muon=dict(lr=0.02), adamw=dict(lr=3e-3))
        # Lightning's checkpoint says what to go on from, not what lies in the swap directory.
        return ebb.torch.Muon(groups, swap=f"{folder}.swap", budget="least", resume="discard")


batches = torch.utils.data.DataLoader(torch.randint(0, 64, (4096,)), batch_size=128)
strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", devices=2, strategy=strategy,
                            logger=False, enable_checkpointing=False)
saved = folder / "last.ckpt"
model = Model()
trainer.fit(model, batches, ckpt_path=saved if saved.exists() else None)
trainer.save_checkpoint(saved)
