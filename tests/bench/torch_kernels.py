"""Times PyTorch's and DeepSpeed's part of a step: for each line KIND ROWS COLS CORES, seconds and
seconds of CPU.

For tests/bench/ns and tests/bench/step. DeepSpeed's kinds answer an error where it is not there.
"""
import os
import sys
import time

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch

A, B, C = 3.4445, -4.7750, 2.0315


def normalised(g, dtype):
    x = g.to(dtype)
    return x / (x.norm() + 1e-7)


def standard(g, dtype):
    x = normalised(g, dtype)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x


def gram_form(g, dtype):
    x = normalised(g, dtype)
    r, q = x @ x.mT, None
    for i in range(5):
        z = torch.addmm(r, r, r, beta=B, alpha=C)
        q = z + A * torch.eye(len(z), dtype=dtype) if q is None else torch.addmm(q, z, q, beta=A)
        if i < 4:
            rz = torch.addmm(r, z, r, beta=A)
            r = torch.addmm(rz, z, rz, beta=A)
    return q @ x


def muon_step(rows, cols):
    weight = torch.nn.Parameter(torch.randn(rows, cols))
    weight.grad = torch.randn(rows, cols)
    return torch.optim.Muon([weight]).step


def adamw_step(make, rows, cols):
    weight = torch.nn.Parameter(torch.randn(rows, cols))
    weight.grad = torch.randn(rows, cols)
    return make([weight]).step


def deepspeed_gram(g):
    from deepspeed.runtime.zero.muon import original_muon
    function = original_muon.zeropower_via_gram_newtonschulz
    return lambda: function(g, steps=5)


def deepspeed_adam(params):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(params)


def work(kind, rows, cols):
    g = torch.randn(rows, cols)
    if kind == "torch-muon":
        return muon_step(rows, cols)
    if kind == "torch-adamw":
        return adamw_step(lambda p: torch.optim.AdamW(p, fused=True), rows, cols)
    if kind == "deepspeed-adam":
        return adamw_step(deepspeed_adam, rows, cols)
    if kind == "deepspeed-gram":
        return deepspeed_gram(g)
    form = {"standard": standard, "gram": gram_form}[kind.split("-")[1]]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[kind.split("-")[2]]
    return lambda: form(g, dtype)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    kept = {}
    for line in sys.stdin:
        try:
            kind, rows, cols, cores = line.split()
            torch.set_num_threads(int(cores))
            what = kind, int(rows), int(cols)
            if what not in kept:
                kept[what] = work(*what)
                with torch.no_grad():
                    kept[what]()  # memory is touched, kernels are chosen
            begin, cpu = time.perf_counter(), time.process_time()
            with torch.no_grad():
                kept[what]()
            answer = f"{time.perf_counter() - begin} {time.process_time() - cpu}"
        except Exception as error:
            answer = "error " + " ".join(str(error).split())[:200]
        print(answer, file=answers, flush=True)


main()
