"""What the rows of test_plain*.py share."""
import torch
from torch.optim.lr_scheduler import LambdaLR
from baseline import ByHand, Muon32, newton_schulz_fp32

from worlds import (GPT, gpt_batch, hand_groups, Net, net_batch, rate, seeded, split,
                    weights_of, worst)


STEPS = 40


FP32 = dict(preset="torch", precision="fp32")  # a group's own setting


def warm(step: int) -> float:
    return min(1.0, (step + 1) / 8)


def model_of(kind: str):
    return (seeded(Net), net_batch) if kind == "net" else (seeded(GPT), gpt_batch)


def learn(kind: str, make, *, steps: int = STEPS, clip: float = 1.0, pieces: int = 1,
          closure: bool = False) -> tuple[list[float], dict, object]:
    """Trains with what `make(model)` answers, a list of optimizers; losses, weights, optimizers."""
    model, batch = model_of(kind)
    optimizers = make(model)
    schedules = [LambdaLR(one, warm) for one in optimizers]
    losses = []
    for step in range(steps):
        x, y = batch(step)

        def backward():
            total = 0.0
            for a, b in zip(x.chunk(pieces), y.chunk(pieces)):
                loss = model(a, b) / pieces
                loss.backward()
                total += loss.item()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            return total

        if closure:
            assert len(optimizers) == 1
            losses.append(optimizers[0].step(backward))
        else:
            losses.append(backward())
            for one in optimizers:
                one.step()
        for one in schedules:
            one.step()
        for one in optimizers:
            one.zero_grad()
    return losses, weights_of(model), optimizers


def torch_pair(model):
    muon, adamw = split(model)
    return [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]


def fp32_pair(model):
    muon, adamw = split(model)
    return [Muon32([p for _, p in muon], lr=rate(model)),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]


def ebb_muon(swap: str, group=None, **options):
    import ebb.torch

    def make(model):
        return [ebb.torch.Muon(hand_groups(model, **(group or {})), swap=swap, **options)]
    return make


def beside(kind: str, pair, most: float, group=None, **options) -> str:
    theirs, their_weights, _ = learn(kind, pair)
    mine, my_weights, (opt,) = learn(kind, ebb_muon("swap", group, **options))
    away = worst(mine, theirs)
    assert opt.steps == STEPS, opt.steps
    apart_by = max(float((my_weights[n] - their_weights[n]).abs().max()) for n in my_weights)
    opt.close()
    assert away <= most, f"losses differ by {away:.2e} at most, weights by {apart_by:.2e}"
    return f"{away:.1e} of {most:.0e}; weights {apart_by:.1e}"


def bf16_run(masters: str, states: bool) -> float:
    """AdamW and Muon over bf16 weights beside fp32 masters by hand, gradients by a formula."""
    import ebb.torch
    from worlds import fill, hand_gradients, places_of
    make = Net
    places = places_of(make, None)
    model = make().bfloat16()
    fill(model, places)
    opt = ebb.torch.Muon(hand_groups(model, **FP32), swap=f"swap-{masters}", masters=masters,
                         checkpoint="tensors" if states else "reference")
    held = {n: p.detach().float().requires_grad_() for n, p in model.named_parameters()}
    muon, adamw = split(model)
    hand = ByHand([held[n] for n, _ in muon], [held[n] for n, _ in adamw], rate(model), 3e-3,
                  newton_schulz_fp32)
    for step in range(1, 7):
        hand_gradients(model, places, step)
        for n, p in model.named_parameters():
            held[n].grad = p.grad.float()
        opt.step()
        hand.step(1.0, 0.0)
    away = 0.0
    for n, p in model.named_parameters():
        want = held[n].detach()
        assert p.dtype is torch.bfloat16
        near = (p.detach().float() - want).abs() <= want.abs() * 2.0 ** -7 + 2e-6
        assert bool(near.all()), f"{masters}: {n} is not its master"
        if states:
            away = max(away, float((opt.state_of(n, "master").float() - want).abs().max()))
    if states:
        state = opt.state_dict()["state"]
        assert all("master" in of for of in state.values()), "bf16 without masters"
    opt.close()
    return away


def _memory() -> str:
    import ebb.torch
    from worlds import rss_anon
    p = torch.nn.Parameter(torch.zeros(3072, 2048))  # 24 MiB; state of 72
    p.grad = torch.full_like(p, 1e-3)
    before = rss_anon()
    opt = ebb.torch.AdamW([("w", p)], swap="swap", budget="least", tile="256KiB", chunk="1MiB")
    most = 0
    for _ in range(3):
        opt.step()
        most = max(most, rss_anon() - before)
    state = opt.state_dict()
    held = rss_anon() - before
    assert state["state"][0]["exp_avg"].shape == p.shape
    plan = opt.plan()
    del state
    opt.close()
    assert most <= 40 << 20, f"anonymous memory grew by {most >> 20} MiB"
    assert held <= most + (16 << 20), f"state_dict(): {held >> 20} MiB after {most >> 20}"
    return f"+{most >> 20} MiB in steps, +{held >> 20} with a state_dict; {plan}".replace("\n", " ")
