"""What the frameworks take for the same matrices as ebb-gpu-bench, in ms: Keller Jordan's iteration in bf16,
compiled, and gram-newton-schulz where it is installed."""

import time

import torch

SHAPES = [(1, 4096, 4096), (1, 4096, 11008), (64, 512, 2048), (4, 4096, 4096), (3, 11008, 4096)]


@torch.compile
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


def least_ms(call):
    call()
    least = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(8):
            call()
        torch.cuda.synchronize()
        least = min(least, (time.perf_counter() - begin) / 8)
    return 1e3 * least


def main():
    forms = {"keller, compiled": keller}
    try:
        from gram_newton_schulz import GramNewtonSchulz

        forms["gram-newton-schulz"] = GramNewtonSchulz()
    except ImportError:
        print("gpu-check: no gram-newton-schulz here")
    for name, form in forms.items():
        for count, rows, cols in SHAPES:
            u = torch.randn(count, rows, cols, device="cuda")
            print(f"torch {name}: {count} x {rows} x {cols} {least_ms(lambda: form(u)):.3f} ms")


main()
