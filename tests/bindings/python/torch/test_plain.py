"""One process: ebb.torch.Muon and AdamW beside torch's own, loss by loss."""
import inspect
import shutil

import torch
from torch.optim.lr_scheduler import LambdaLR

from baseline import ByHand, Muon32, newton_schulz_bf16, newton_schulz_fp32
from worlds import (GPT, Net, apart, check_same, gpt_batch, hand_groups, net_batch, rate, row,
                    run_rows, seeded, split, weights_of, worst)

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


def beside(kind: str, pair, most: float, group=None, **options) -> str:
    theirs, their_weights, _ = learn(kind, pair)
    mine, my_weights, (opt,) = learn(kind, ebb_muon("swap", group, **options))
    away = worst(mine, theirs)
    assert opt.steps == STEPS, opt.steps
    apart_by = max(float((my_weights[n] - their_weights[n]).abs().max()) for n in my_weights)
    opt.close()
    assert away <= most, f"losses differ by {away:.2e} at most, weights by {apart_by:.2e}"
    return f"{away:.1e} of {most:.0e}; weights {apart_by:.1e}"


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


@row("a closure: called once, with gradients; its loss is answered")
def closure() -> str:
    plain, a, (one,) = learn("net", ebb_muon("a"))
    closed, b, (two,) = learn("net", ebb_muon("b"), closure=True)
    assert plain == closed, "losses differ"
    check_same(a, b, "weights")
    calls = []

    def count():
        assert torch.is_grad_enabled()
        calls.append(1)
        return torch.tensor(3.5)
    assert float(two.step(count)) == 3.5 and len(calls) == 1
    one.close()
    two.close()
    return ""


@row("budget least = budget all, bit for bit; least pages, all does not")
def budgets() -> str:
    figures = []
    for kind in ("net", "gpt"):
        losses, weights, (full,) = learn(kind, ebb_muon(f"{kind}-all", budget="all"))
        assert full.plan().read == 0, f"'all' reads {full.plan().read} B a step"
        full.close()
        for budget in ("least", "50%"):
            other, low, (opt,) = learn(kind, ebb_muon(f"{kind}-{budget}", budget=budget,
                                                      tile="4KiB", slots=2))
            assert other == losses, f"{kind}, {budget}: losses differ"
            check_same(low, weights, f"{kind}, {budget}")
            figures.append(f"{budget} {opt.plan().read}")
            if budget == "least":
                assert opt.plan().read > 0, "the least budget reads nothing"
            opt.close()
    return "bytes read in a step: " + ", ".join(figures)


@row("last says what a step read and wrote")
def last_bytes() -> str:
    _, _, (opt,) = learn("net", ebb_muon("swap", budget="least", tile="4KiB"), steps=3)
    last = opt.last
    opt.close()
    assert last.read_bytes > 0 and last.written_bytes > 0 and last.seconds > 0, last
    return str(last)


@row("placement, threads, tiles, chunks change no bit")
def ways() -> str:
    want = None
    ways = [{}, dict(threads=2), dict(placement="owner"), dict(placement="shard"),
            dict(tile="16KiB", chunk="64KiB"), dict(masters="engine")]
    for number, options in enumerate(ways):
        losses, weights, (opt,) = learn("gpt", ebb_muon(f"swap{number}", **options), steps=10)
        opt.close()
        if want is None:
            want = losses, weights
        assert losses == want[0], f"{options}: losses differ"
        check_same(weights, want[1], str(options))
    return f"{len(ways)} ways"


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


@row("bf16 parameters are fp32 masters by hand, rounded")
def bf16() -> str:
    for masters in ("auto", "engine", "halves"):
        bf16_run(masters, states=False)
    return ""


@row("bf16 parameters: masters are those by hand, state_dict() has them")
def bf16_masters() -> str:
    figures = []
    for masters in ("engine", "auto", "halves"):
        try:
            away = bf16_run(masters, states=True)
        except NotImplementedError as error:  # they may be no tensors, if that is said at once
            assert masters == "halves" and "halves" in str(error), error
            continue
        shutil.rmtree(f"swap-{masters}")
        figures.append(f"{masters} {away:.1e}")
        assert away <= 2e-6, f"{masters}: masters differ by {away}"
    return ", ".join(figures)


@row("momentum in bf16 trains like momentum in fp32")
def momentum_bf16() -> str:
    want, _, (a,) = learn("gpt", ebb_muon("a"))
    got, _, (b,) = learn("gpt", ebb_muon("b", momentum_dtype=torch.bfloat16))
    a.close()
    b.close()
    away = worst(got, want)
    assert got != want, "the dtype of the momentum changes nothing"
    assert away <= 2e-2, away
    return f"{away:.1e}"


@row("groups(): who goes where, by type and tie, not by name")
def rule() -> str:
    import ebb.torch

    def of(groups) -> dict[str, str]:
        where = {}
        for group in groups:
            for name, p in group["params"]:
                assert isinstance(p, torch.nn.Parameter)
                where[name] = group["algorithm"]
        return where
    model = seeded(GPT)
    made = ebb.torch.groups(model, muon=dict(lr=0.02), adamw=dict(lr=3e-3))
    want = {n: "muon" if n.startswith("blocks") and p.ndim == 2 else "adamw"
            for n, p in model.named_parameters()}
    assert of(made) == want, {n: v for n, v in of(made).items() if want.get(n) != v}
    assert {g["algorithm"]: g["lr"] for g in made} == {"muon": 0.02, "adamw": 3e-3}
    for name in ("blocks.0.qkv.weight", "tok.weight"):
        assert name in repr(made), f"repr() does not tell of {name}"

    class Odd(torch.nn.Module):  # names that mislead, a convolution
        def __init__(self):
            super().__init__()
            self.embed_mix = torch.nn.Linear(6, 6)
            self.lookup = torch.nn.Embedding(5, 6)
            self.conv = torch.nn.Conv2d(3, 4, 2)
            self.head_gate = torch.nn.Linear(6, 6)
            self.table = torch.nn.EmbeddingBag(5, 6)
    where = of(ebb.torch.groups(Odd(), muon={}, adamw={}))
    assert where["embed_mix.weight"] == where["head_gate.weight"] == "muon", where
    assert where["conv.weight"] == "muon", where
    assert where["lookup.weight"] == where["table.weight"] == "adamw", where

    class Wide(torch.nn.Module):  # as wide as it has positions, as GPT-2 medium is
        def __init__(self):
            super().__init__()
            self.tok, self.pos = torch.nn.Embedding(50, 16), torch.nn.Embedding(16, 16)
            self.out = torch.nn.Linear(16, 16)
    assert of(ebb.torch.groups(Wide()))["out.weight"] == "muon", "a hidden layer as wide as pos"
    asked = of(ebb.torch.groups(Odd(), muon={}, adamw={},
                                rule=lambda n, p: "adamw" if "gate" in n else None
                                if n.startswith("conv") else "muon" if p.ndim == 2 else "adamw"))
    assert asked["head_gate.weight"] == "adamw", asked
    return f"{len(want)} parameters"


@row("a whole model, named parameters, groups with param_names are taken")
def ways_in() -> str:
    import ebb.torch

    def run(make) -> dict:
        model = seeded(Net)
        opt = make(model)
        for step in range(3):
            model(*net_batch(step)).backward()
            opt.step()
            opt.zero_grad()
        opt.close()
        return weights_of(model)
    named = run(lambda m: ebb.torch.AdamW(m.named_parameters(), lr=1e-2, swap="a"))
    check_same(run(lambda m: ebb.torch.AdamW(list(m.named_parameters()), lr=1e-2, swap="b")),
               named, "a list")
    check_same(run(lambda m: ebb.torch.AdamW(
        [dict(params=list(m.parameters()), param_names=[n for n, _ in m.named_parameters()])],
        lr=1e-2, swap="c")), named, "param_names")
    made = {}

    def whole(m):
        made["opt"] = ebb.torch.Muon(m, lr=1e-2, swap="d")
        return made["opt"]
    got = run(whole)
    assert all(bool(t.isfinite().all()) for t in got.values())
    check_same(run(lambda m: ebb.torch.Muon(ebb.torch.groups(m), lr=1e-2, swap="e")), got,
               "a model and groups(model)")
    return ""


@row("hooks, schedulers, GradScaler, zero_grad(False), frozen parameters")
def torch_manners() -> str:
    import ebb.torch
    model = seeded(Net)
    model.down.bias.requires_grad_(False)
    opt = ebb.torch.Muon(hand_groups(model), swap="swap")
    assert isinstance(opt, torch.optim.Optimizer)
    seen = []
    opt.register_step_pre_hook(lambda *a: seen.append("pre"))
    opt.register_step_post_hook(lambda *a: seen.append("post"))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    other = seeded(Net)
    other.down.bias.requires_grad_(False)
    pair = torch_pair(other)
    schedules += [torch.optim.lr_scheduler.CosineAnnealingLR(one, 10) for one in pair]
    losses = [[], []]
    for step in range(8):
        loss = model(*net_batch(step))
        losses[0].append(loss.item())
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=False)
        loss = other(*net_batch(step))
        losses[1].append(loss.item())
        loss.backward()
        for one in pair:
            one.step()
            one.zero_grad()
        for one in schedules:
            one.step()
    assert seen == ["pre", "post"] * 8, seen
    away = worst(losses[0], losses[1])
    assert away <= 2e-4, away
    opt.close()
    return f"{away:.1e}"


@row("signatures of step, zero_grad, state_dict, ... are torch's")
def signatures() -> str:
    import ebb.torch
    for kind in (ebb.torch.Muon, ebb.torch.AdamW):
        assert issubclass(kind, torch.optim.Optimizer)
        for name in ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"):
            mine = inspect.signature(getattr(kind, name)).parameters
            want = inspect.signature(getattr(torch.optim.Optimizer, name)).parameters
            assert list(mine) == list(want), f"{name}{tuple(mine)} is not {name}{tuple(want)}"
            for each in want:
                if want[each].default is not inspect.Parameter.empty:
                    assert mine[each].default == want[each].default, (name, each)
    want = ("open", "close", "snapshot", "last", "steps", "origin", "store", "opened",
            "take_parameters", "state_of", "plan", "stats", "blobs", "consolidate_state_dict")
    lacks = [name for name in want if not hasattr(ebb.torch.Muon, name)]
    # what __init__ sets is no attribute of the class
    opt = ebb.torch.AdamW([("w", torch.nn.Parameter(torch.zeros(3)))], swap="swap")
    lacks = [name for name in lacks if not hasattr(opt, name)]
    assert not lacks, f"lacks {lacks}"
    return ""


@row("memory: a paged AdamW keeps its state out of memory")
def memory() -> str:
    return apart(_memory)


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


if __name__ == "__main__":
    run_rows()
