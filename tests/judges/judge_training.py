"""judge_training.py GPT_TRAIN CKPT_CONVERT muon|adamw [STEPS]: trains the GPT of examples/gpt by gpt-train and
by PyTorch: the same text, batches, initial weights (as gpt-train stored them at step 0), schedule and
settings. With torch.optim.Muon beside its preset `torch`, or with torch.optim.AdamW for all.

At every step the two losses of one seed may differ by at most a quarter of the spread (largest minus
smallest) of three seeds' losses at that step. The first step is left out: the classifier is zero
there, and all losses are log 256."""
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

WIDTH, LAYERS, HEADS, SEQUENCE, BATCH = 64, 2, 4, 64, 12
SEEDS = (7, 8, 9)
WARM, FULL, LEAST, ADAM_RATE, RATE = 10, 0.4, 0.05, 0.01, {"muon": 0.005, "adamw": 0.001}
MASK = (1 << 64) - 1


def mix(x):  # examples/gpt/random.h
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def batch(text, seed, step):
    places = len(text) - (SEQUENCE + 1) + 1
    firsts = [mix(mix(seed) ^ (step * BATCH + i)) % places for i in range(BATCH)]
    return torch.stack([text[first:first + SEQUENCE + 1] for first in firsts])


def rms(x, gain):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def rotation():
    pairs = WIDTH // HEADS // 2
    turn = 1e4 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    angle = torch.arange(SEQUENCE, dtype=torch.float64)[:, None] * turn
    return angle.cos().float(), angle.sin().float()


def rotate(x, cosine, sine):  # (batch, heads, sequence, width of a head); neighbours are a pair
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1).flatten(-2)


def loss_of(w, tokens, turned):
    x = w["embedding.weight"][tokens[:, :-1]]
    heads = lambda y: y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    for i in range(LAYERS):
        at = f"blocks.{i}."
        y = rms(x, w[at + "attention.gain"])
        q, k, v = (heads(y @ w[f"{at}attention.{name}.weight"].T) for name in ("query", "key", "value"))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            rotate(q, *turned), rotate(k, *turned), v, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(-2) @ w[at + "attention.output.weight"].T
        y = rms(x, w[at + "mlp.gain"]) @ w[at + "mlp.up.weight"].T
        x = x + y.relu().square() @ w[at + "mlp.down.weight"].T
    logits = rms(x, w["final.gain"]) @ w["head.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def schedule(step, end):
    down = min(max((step - FULL * end) / (end - FULL * end), 0), 1)
    return min(1, (step + 1) / WARM) * (1 - (1 - LEAST) * down)


def train_torch(initial, text, seed, optimizer, steps):
    w = {name: value.clone().requires_grad_() for name, value in initial.items()}
    matrix = lambda name: name.startswith("blocks.") and w[name].dim() == 2
    adam = dict(betas=(0.9, 0.95), eps=1e-10, weight_decay=0)
    mine = [w[name] for name in w if matrix(name)]
    of = {"muon": lambda: torch.optim.Muon(mine, lr=RATE["muon"]),
          "adamw": lambda: torch.optim.AdamW(mine, lr=RATE["adamw"], **adam)}[optimizer]()
    rest = torch.optim.AdamW([w[name] for name in w if not matrix(name)], lr=ADAM_RATE, **adam)
    turned, losses = rotation(), []
    for step in range(steps):
        for one, rate in ((of, RATE[optimizer]), (rest, ADAM_RATE)):
            one.param_groups[0]["lr"] = rate * schedule(step, steps)
            one.zero_grad()
        loss = loss_of(w, batch(text, seed, step), turned)
        loss.backward()
        of.step()
        rest.step()
        losses.append(loss.item())
    return losses


class Programs:
    def __init__(self, gpt_train, ckpt_convert, folder):
        self.gpt_train, self.ckpt_convert, self.folder = gpt_train, ckpt_convert, folder
        self.text = os.path.join(folder, "text")

    def train(self, name, steps, *more):
        swap, result = (os.path.join(self.folder, name + end) for end in ("", ".json"))
        subprocess.run(
            [self.gpt_train, "--swap", swap, "--json", result, "--text", self.text, "--quiet", "--width",
             str(WIDTH), "--layers", str(LAYERS), "--sequence", str(SEQUENCE), "--steps", str(steps),
             "--snapshot-every", "1000000", "--ranks", "2", *more], check=True, stderr=subprocess.DEVNULL)
        with open(result) as file:
            return swap, json.load(file)["losses"]

    def initial(self):
        swap, _ = self.train("initial", 0)
        out = os.path.join(self.folder, "initial_weights")
        subprocess.run([self.ckpt_convert, swap, out, "--weights", "--to", "safetensors"],
                       check=True, stdout=subprocess.DEVNULL)
        return load_file(os.path.join(out, "model.safetensors"))


def licences():
    folder = "/usr/share/common-licenses"
    paths = sorted({os.path.realpath(os.path.join(folder, name)) for name in os.listdir(folder)})
    return b"".join(open(path, "rb").read() for path in paths)


def compare(optimizer, ours, theirs):
    """By seed the losses of both. The worst ratio of a difference to the spread at its step."""
    worst, largest = (0, 0), 0
    for step in range(1, len(ours[0])):
        at = [losses[step] for losses in theirs]
        spread = max(at) - min(at)
        apart = max(abs(a[step] - b[step]) for a, b in zip(ours, theirs))
        largest = max(largest, apart)
        worst = max(worst, (apart / spread if spread > 0 else math.inf, step + 1))
    first = max(abs(a[0] - b[0]) for a, b in zip(ours, theirs))
    good = worst[0] <= 0.25 and first <= 1e-5
    print(f"{optimizer}: {len(ours[0])} steps, {len(ours)} seeds, last losses "
          + ", ".join(f"{a[-1]:.4f}/{b[-1]:.4f}" for a, b in zip(ours, theirs))
          + f"; apart at most {largest:.2g}, {worst[0]:.3f} of the seeds' spread (step {worst[1]})")
    return good


def main(gpt_train, ckpt_convert, optimizer, steps="300"):
    steps = int(steps)
    torch.set_num_threads(1)  # the matrices are small
    flags = {"muon": ["--preset", "torch"], "adamw": ["--optimizer", "adamw"]}
    flags = flags[optimizer] + ["--lr", str(RATE[optimizer]), "--decay-end", str(steps)]
    whole = licences()
    text = torch.tensor(list(whole[:len(whole) - len(whole) // 10]), dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(gpt_train, ckpt_convert, folder)
        with open(programs.text, "wb") as file:
            file.write(whole)
        initial = programs.initial()
        ours = [programs.train(str(seed), steps, "--seed", str(seed), *flags)[1] for seed in SEEDS]
    theirs = [train_torch(initial, text, seed, optimizer, steps) for seed in SEEDS]
    return 0 if compare(optimizer, ours, theirs) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
