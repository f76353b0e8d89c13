"""transformers' Trainer, alone or under torchrun; type it again with more steps, and it goes on at
its last checkpoint.

python hf_trainer.py FOLDER STEPS"""
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ebb.torch.hf

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
texts = [dict(input_ids=t, labels=t) for t in ((torch.arange(32) * 3 + i) % 96 for i in range(96))]
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=96, n_positions=32))
trainer = Trainer(
    model=model,
    args=TrainingArguments(str(folder), max_steps=steps, save_steps=10, logging_steps=10,
                           warmup_steps=5, use_cpu=True, report_to=[]),
    train_dataset=texts,
    optimizer_cls_and_kwargs=(ebb.torch.hf.Factory, dict(
        swap=str(folder) + ".swap", budget="least", muon=dict(lr=0.02), adamw=dict(lr=3e-3))),
    callbacks=[ebb.torch.hf.Callback()],  # collects the state before a save; logs norm and seconds
)
trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
