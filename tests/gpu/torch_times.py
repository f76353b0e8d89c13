"""What the frameworks take for the same matrices as ebb-gpu-bench: Keller Jordan's iteration in bf16, compiled, and
gram-newton-schulz where it is installed. torch_times.py FILE: JSON, written anew behind each figure, so that whoever
is stopped leaves those that it has. Who is absent stands there, too, and why."""

import json
import os
import sys
import time

# Those of tests/gpu/scale.h.
SHAPES = [(1, 4096, 4096), (1, 4096, 11008), (64, 512, 2048), (4, 4096, 4096), (2, 11008, 4096)]
KELLER, GRAM = "torch keller, compiled", "gram-newton-schulz"
ROUNDS, CALLS = 7, 8


class Figures:
    def __init__(self, path):
        self.path = path
        self.times = {}
        self.absent = {}

    def add(self, by, shape, seconds):
        count, rows, cols = shape
        self.times.setdefault(by, {})[f"{count} x {rows} x {cols}"] = int(1e9 * seconds)
        self.write()

    def leave_out(self, by, why):
        self.absent[by] = " ".join(str(why).split()) or type(why).__name__
        self.write()

    def write(self):
        with open(self.path + ".new", "w") as file:
            json.dump({"newton_schulz_nanoseconds": self.times, "absent": self.absent}, file, indent=1)
        os.replace(self.path + ".new", self.path)


def keller(u):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


def least_seconds(call, wait):
    call()
    least = float("inf")
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        least = min(least, (time.perf_counter() - begin) / CALLS)
    return least


def gram_forms(torch):
    """Its object called as its users do, and as it compiles itself: a call of the object does not find that."""
    from gram_newton_schulz import GramNewtonSchulz

    form = GramNewtonSchulz()
    return [form, form.__call__]


def measure(torch, figures, device, shapes):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    forms = {KELLER: [torch.compile(keller, dynamic=False)]}
    try:
        forms[GRAM] = gram_forms(torch)
    except Exception as why:  # of whatever it needs
        figures.leave_out(GRAM, why)
    for by, calls in forms.items():
        for shape in shapes:
            u = torch.randn(shape, device=device)
            seconds = []
            for call in calls:
                try:
                    seconds.append(least_seconds(lambda: call(u), wait))
                except Exception as why:
                    figures.leave_out(by, why)
            if seconds:
                figures.add(by, shape, min(seconds))


def main():
    figures = Figures(sys.argv[1])
    try:
        import torch
    except ImportError as why:
        for by in (KELLER, GRAM):
            figures.leave_out(by, why)
        return
    if not torch.cuda.is_available():
        for by in (KELLER, GRAM):
            figures.leave_out(by, "torch sees no GPU")
        return
    measure(torch, figures, "cuda", SHAPES)


if __name__ == "__main__":
    main()
