"""More rows of test_plain.py."""
import copy
import inspect
import shutil
import warnings
import torch

from plain_runs import _memory, bf16_run, ebb_muon, learn, torch_pair
from worlds import (apart, check_same, GPT, hand_groups, Net, net_batch, raises, row, run_rows,
                    seeded, weights_of, worst)


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


@row("bf16 parameters are fp32 masters by hand, rounded")
def bf16() -> str:
    for masters in ("auto", "engine", "halves"):
        bf16_run(masters, states=False)
    return ""


@row("bf16 parameters: masters are those by hand, state_dict() has them")
def bf16_masters() -> str:
    figures = []
    for masters in ("engine", "auto", "halves"):
        away = bf16_run(masters, states=True)
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


@row("a first step with lr 0 and gradients of zeros counts, unless a helper made it")
def first_step() -> str:
    import ebb.torch

    def run(make, save: bool) -> tuple[dict, float]:
        model = seeded(Net)
        opt = make(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: step / 4)
        for step in range(5):
            model(*net_batch(step)).backward()
            if step == 0:  # a batch that is masked
                for p in model.parameters():
                    p.grad.zero_()
            opt.step()
            if save and step == 0 and isinstance(opt, ebb.torch.AdamW):
                opt.snapshot(wait=True)
            schedule.step()
            opt.zero_grad()
        made = opt.state_dict()["state"][0]
        return weights_of(model), float(made["step"])
    theirs = run(lambda m: torch.optim.AdamW(m.named_parameters(), lr=0.1), False)
    for save in (False, True):
        mine = run(lambda m: ebb.torch.AdamW(m.named_parameters(), lr=0.1, swap=f"a{save}"), save)
        assert mine[1] == theirs[1] == 5, (mine[1], theirs[1])
        away = max(float((mine[0][n] - theirs[0][n]).abs().max()) for n in mine[0])
        assert away <= 1e-6, away
    return f"{away:.1e}"


@row("a gradient with torch's negative bit is read with its sign")
def negated() -> str:
    import ebb.torch
    ws = []
    for kind in ("torch", "ebb"):
        w = torch.nn.Parameter(torch.tensor(0.5))
        opt = (torch.optim.AdamW([w], lr=0.1) if kind == "torch"
               else ebb.torch.AdamW([("w", w)], lr=0.1, weight_decay=0.01, swap="swap"))
        (torch.complex(torch.tensor(1.0), w).conj() * torch.tensor(1 + 2j)).real.backward()
        assert w.grad.is_neg() and w.grad.is_contiguous()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt.step()
        ws.append(float(w.detach()))
    assert abs(ws[0] - ws[1]) <= 1e-6, ws
    return f"{ws}"


@row("OneCycleLR cycles Muon's momentum and AdamW's beta1, as over torch's pair")
def one_cycle() -> str:
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(hand_groups(model), swap="swap")
    muon, adamw = torch_pair(seeded(Net))
    schedules = [torch.optim.lr_scheduler.OneCycleLR(one, max_lr=0.05, total_steps=8)
                 for one in (opt, muon, adamw)]
    for step in range(6):
        model(*net_batch(step)).backward()
        opt.step()
        muon.step()
        adamw.step()
        for one in schedules:
            one.step()
        mine, theirs = opt.param_groups, (muon.param_groups[0], adamw.param_groups[0])
        assert mine[0]["momentum"] == theirs[0]["momentum"], (step, mine[0], theirs[0])
        assert mine[1]["betas"] == theirs[1]["betas"], (step, mine[1], theirs[1])
    assert opt._run._rates[0]["beta"] != 0.95, "the engine was not told"
    again = copy.deepcopy(opt.param_groups[0])
    assert again["momentum"] == mine[0]["momentum"] and again["betas"] == mine[0]["betas"]
    opt.close()
    return ""


@row("frozen parameters: said, and left out where asked; names without wrappers' words")
def frozen_and_wrapped() -> str:
    import ebb.torch
    model = seeded(Net)
    model.up.requires_grad_(False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        whole = ebb.torch.Muon(model, swap="a").plan()
        assert any("frozen=False" in str(w.message) for w in heard), "no word of frozen ones"
        heard.clear()
        part = ebb.torch.Muon(ebb.torch.groups(model, frozen=False), swap="b").plan()
        assert not heard, heard[0].message
    assert part.state < whole.state, (part.state, whole.state)
    compiled = torch.compile(seeded(Net), backend="eager")
    want = [name for name, _ in seeded(Net).named_parameters()]
    for kind in (ebb.torch.AdamW, ebb.torch.Muon):
        opt = kind(compiled, swap="c")
        names = [name for group in opt.param_groups for name in group["param_names"]]
        assert sorted(names) == sorted(want), names
    return f"{part.state} of {whole.state} B"


@row("torch's own arguments, and keys of the user's own in groups")
def more_arguments() -> str:
    import ebb.torch
    model = seeded(Net)
    for key in ("foreach", "fused", "capturable", "maximize", "amsgrad", "differentiable"):
        ebb.torch.AdamW(model, swap="a", **{key: False})
    for key in ("maximize", "amsgrad", "differentiable"):
        with raises(ValueError, says=key):
            ebb.torch.AdamW(model, swap="a", **{key: True})
    for kind, key in ((ebb.torch.AdamW, "ns_steps"), (ebb.torch.Muon, "nesteroff")):
        with raises(TypeError, says=key):
            kind(model, swap="a", **{key: 5})
    for settings in (dict(ns_steps=2.0), dict(adjust_lr_fn="no"), dict(ns_coefficients=(1, 2))):
        with raises(TypeError, ValueError, says=next(iter(settings))):
            ebb.torch.Muon(model, swap="a", **settings)
    for count in (0, 33):
        with raises(ValueError, says="ns_steps"):
            ebb.torch.Muon(model, swap="a", ns_steps=count).open()
    opt = ebb.torch.Muon(model, swap="a", precision="fp32", ns_steps=5, adjust_lr_fn="original")
    assert [group.get("precision") for group in opt.param_groups] == ["fp32", None]
    with raises(ValueError, says="twice"):
        ebb.torch.AdamW([("a", model.up.bias), ("b", model.up.bias)], swap="a")

    groups = hand_groups(model)
    for group in groups:
        group.update(name="mine", lr_scale=0.5)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        opt = ebb.torch.Muon(groups, swap="b")
    assert any("lr_scale" in str(w.message) for w in heard), "a typo would be taken in silence"
    opt.param_groups[1]["tag"] = 1
    model(*net_batch(0)).backward()
    opt.step()
    made = opt.state_dict()["param_groups"]
    opt.close()
    assert [g["lr_scale"] for g in made] == [0.5, 0.5] and made[1]["tag"] == 1
    groups = hand_groups(model)
    groups[0]["betas"], groups[1]["preset"] = (0.5, 0.6), "moonlight"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ebb.torch.Muon(groups, swap="c")
    assert [word in str(w.message) for w, word in zip(heard, ("betas", "preset"))] == [True, True]
    for algorithm, key in (("adamw", "weigth_decay"), ("adamw", "precision"), ("muon", "momentun")):
        params = hand_groups(model)[algorithm == "adamw"]["params"]
        with raises(ValueError, says=key):
            ebb.torch.Muon([dict(params=params, algorithm=algorithm, **{key: 1})], swap="c")
    return ""


if __name__ == "__main__":
    run_rows()
