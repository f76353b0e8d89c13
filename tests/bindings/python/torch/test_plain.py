"""One process: ebb.torch.Muon and AdamW beside torch's own, loss by loss."""
import inspect
import shutil
import torch
from torch.optim.lr_scheduler import LambdaLR
from baseline import ByHand, newton_schulz_bf16, newton_schulz_fp32

from plain_runs import beside, ebb_muon, FP32, fp32_pair, learn, model_of, STEPS, torch_pair, warm
from worlds import Net, net_batch, rate, row, run_rows, seeded, split, worst


@row("the baseline is what the formulas say, schedule and clipping too")
def baseline_by_hand() -> str:
    figures = []
    for kind in ("net", "gpt"):
        for pair, orthogonal, most in ((torch_pair, newton_schulz_bf16, 2e-4),
                                       (fp32_pair, newton_schulz_fp32, 2e-6)):
            theirs, _, _ = learn(kind, pair)
            model, batch = model_of(kind)
            muon, adamw = split(model)
            hand = ByHand([p for _, p in muon], [p for _, p in adamw],
                          rate(model), 3e-3, orthogonal)
            mine = []
            for step in range(STEPS):
                loss = model(*batch(step))
                loss.backward()
                hand.step(warm(step), 1.0)
                model.zero_grad()
                mine.append(loss.item())
            away = worst(theirs, mine)
            figures.append(f"{away:.1e}")
            assert away <= most, f"{kind}: the baseline itself is off by {away}"
            assert mine[-1] < mine[0] * 0.95, f"{kind} does not learn: {mine[0]} to {mine[-1]}"
    return " ".join(figures)


@row("a net of two layers beside torch.optim.Muon + AdamW, preset torch")
def net_torch() -> str:
    return beside("net", torch_pair, 2e-4)


@row("a GPT, tied head, (in, out) matrices, beside torch's, preset torch")
def gpt_torch() -> str:
    return beside("gpt", torch_pair, 2e-4)


@row("a net, Newton-Schulz in fp32 on both sides")
def net_fp32() -> str:
    return beside("net", fp32_pair, 2e-6, FP32)


@row("a GPT, Newton-Schulz in fp32 on both sides")
def gpt_fp32() -> str:
    return beside("gpt", fp32_pair, 2e-6, FP32)


@row("a GPT, paged at the least budget, beside torch's")
def gpt_paged() -> str:
    return beside("gpt", torch_pair, 2e-4, budget="least", tile="4KiB")


@row("AdamW alone beside torch.optim.AdamW")
def adamw_alone() -> str:
    import ebb.torch

    def ours(model):
        return [ebb.torch.AdamW(model.named_parameters(), lr=3e-3, betas=(0.8, 0.95), eps=1e-7,
                                weight_decay=0.05, swap="swap")]

    def theirs(model):
        return [torch.optim.AdamW(model.named_parameters(), lr=3e-3, betas=(0.8, 0.95), eps=1e-7,
                                  weight_decay=0.05)]
    figures = []
    for kind in ("net", "gpt"):
        mine, my_weights, (opt,) = learn(kind, ours)
        want, weights, _ = learn(kind, theirs)
        opt.close()
        shutil.rmtree("swap")
        away = worst(mine, want)
        figures.append(f"{away:.1e}")
        assert away <= 2e-6, f"{kind}: losses differ by {away}"
    return " ".join(figures)


@row("the defaults are torch.optim.Muon's and AdamW's")
def defaults() -> str:
    import ebb.torch
    mine = inspect.signature(ebb.torch.Muon.__init__).parameters
    theirs = inspect.signature(torch.optim.Muon.__init__).parameters
    for name in ("lr", "weight_decay", "momentum", "nesterov"):
        assert mine[name].default == theirs[name].default, (name, mine[name], theirs[name])
    positional = [n for n, p in mine.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[:6] == list(theirs)[:6], positional
    theirs = inspect.signature(torch.optim.AdamW.__init__).parameters
    mine = inspect.signature(ebb.torch.AdamW.__init__).parameters
    for name in ("lr", "betas", "eps", "weight_decay"):
        assert mine[name].default == theirs[name].default, (name, mine[name], theirs[name])

    # And what they mean when nothing is given: a matrix alone, a vector alone.
    def one(shape, theirs, ours) -> None:
        a, b = (torch.nn.Parameter(torch.linspace(-1, 1, 96).view(shape)) for _ in range(2))
        other, opt = theirs([a]), ours([("w", b)])
        for step in range(3):
            a.grad = torch.sin(torch.arange(96.0) * (step + 1)).view(shape)
            b.grad = a.grad.clone()
            other.step()
            opt.step()
        opt.close()
        away = float((a - b).detach().abs().max())
        assert away <= 2e-5, away
    one((8, 12), torch.optim.Muon, lambda p: ebb.torch.Muon(p, swap="one"))
    one((96,), torch.optim.AdamW, lambda p: ebb.torch.AdamW(p, swap="two"))
    return ""


@row("all settings of a group are heeded, and read at every step")
def settings() -> str:
    import ebb.torch
    figures = []
    for nesterov in (True, False):
        for late in (False, True):
            mine, theirs = seeded(Net), seeded(Net)
            muon, adamw = split(theirs)
            others = [torch.optim.Muon(muon, lr=0.01, weight_decay=0.3, momentum=0.8,
                                       nesterov=nesterov),
                      torch.optim.AdamW(adamw, lr=1e-2, betas=(0.7, 0.9), eps=1e-3,
                                        weight_decay=0.2)]
            a, b = split(mine)
            opt = ebb.torch.Muon(
                [dict(params=a, lr=0.01, weight_decay=0.3, momentum=0.8, nesterov=nesterov),
                 dict(params=b, algorithm="adamw", lr=1e-2, betas=(0.7, 0.9), eps=1e-3,
                      weight_decay=0.2)], swap=f"s{nesterov}{late}")
            losses: list[list[float]] = [[], []]
            for step in range(12):
                if late and step == 4:
                    groups = [[others[0].param_groups[0], others[1].param_groups[0]],
                              opt.param_groups]
                    for g, h in groups:
                        g.update(lr=0.003, weight_decay=0.01, momentum=0.9)
                        h.update(lr=torch.tensor(0.002), weight_decay=0.5, betas=(0.85, 0.95))
                    # torch takes a tensor with foreach off alone; a number there
                    groups[0][1]["lr"] = 0.002
                for model, optimizers, into in ((theirs, others, losses[0]),
                                                (mine, [opt], losses[1])):
                    loss = model(*net_batch(step))
                    loss.backward()
                    into.append(loss.item())
                    for one in optimizers:
                        one.step()
                        one.zero_grad()
            opt.close()
            away = worst(losses[1], losses[0])
            figures.append(f"{away:.1e}")
            assert away <= 2e-4, f"nesterov {nesterov}, changed later {late}: {away:.2e}"
    return " ".join(figures)


@row("clipping inside (max_norm) is clipping outside")
def clip_inside() -> str:
    figures = []
    for kind, clip in (("net", 0.05), ("gpt", 0.3)):
        outside, _, _ = learn(kind, fp32_pair, clip=clip)
        model, batch = model_of(kind)
        (opt,) = ebb_muon(f"swap-{kind}", FP32, max_norm=clip)(model)
        schedule = LambdaLR(opt, warm)
        mine, norms = [], 0.0
        for step in range(STEPS):
            loss = model(*batch(step))
            loss.backward()
            before = [p.grad.clone() for p in model.parameters()]
            norm = float(torch.nn.utils.get_total_norm(before))
            opt.step()
            assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters())), \
                "the trainer's gradients were written to"
            norms = max(norms, abs(opt.last.norm - norm) / norm)
            want = min(1.0, clip / (norm + 1e-6))
            assert abs(opt.last.clip - want) <= 2e-5 * want, (opt.last.clip, want)
            assert not opt.last.skipped
            schedule.step()
            opt.zero_grad()
            mine.append(loss.item())
        opt.close()
        away = worst(mine, outside)
        figures.append(f"{away:.1e}")
        assert norms <= 2e-6, f"norm differs by {norms}"
        assert away <= 2e-5, f"{kind}: losses differ by {away:.2e}"
    return f"losses {' '.join(figures)}, norm {norms:.1e}"


@row("accumulation of 4 micro-batches")
def accumulation() -> str:
    theirs, _, _ = learn("gpt", torch_pair, pieces=4)
    mine, _, (opt,) = learn("gpt", ebb_muon("swap"), pieces=4)
    assert opt.steps == STEPS
    opt.close()
    away = worst(mine, theirs)
    assert away <= 2e-4, away
    return f"{away:.1e}"


if __name__ == "__main__":
    run_rows()
