"""More rows of test_resume.py."""
import copy
import os
from pathlib import Path
import torch
from torch.optim.lr_scheduler import LambdaLR

from resume_runs import (check_states, loading_run, losses_of, make_opt, saved, saving_run, train,
                         whole_run)
from worlds import (apart, check_same, GPT, hand_gradients, Net, net_batch, places_of, raises, rate,
                    row, run_rows, same_bits, seeded, split, weights_of, worst)


@row("torch's own helpers: get and set of the optimizer's state, before any step")
def helpers() -> str:
    from torch.distributed.checkpoint.state_dict import (get_optimizer_state_dict,
                                                         set_optimizer_state_dict)
    model = seeded(GPT)
    opt = make_opt(model, "a")
    first = get_optimizer_state_dict(model, opt)
    assert opt.steps == 0 and len(first["state"]) == len(list(model.parameters()))
    train(model, opt, 0, 5)
    got = get_optimizer_state_dict(model, opt)
    assert set(got["state"]) == set(dict(model.named_parameters())), sorted(got["state"])
    keep = {n: {k: v.clone() for k, v in s.items()} for n, s in got["state"].items()}
    other = seeded(GPT, seed=2)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    twin = make_opt(other, "b")
    set_optimizer_state_dict(other, twin, got)
    again = get_optimizer_state_dict(other, twin)["state"]
    for n in keep:
        check_same({k: v.clone() for k, v in again[n].items()}, keep[n], n)
    assert train(other, twin, 5, 8) == train(model, opt, 5, 8)
    check_same(weights_of(other), weights_of(model), "weights")
    opt.close()
    twin.close()
    return f"{len(keep)} parameters"


@row("not opened: no state; the round trip of accelerate changes nothing")
def unopened() -> str:
    model = seeded(GPT)
    opt = make_opt(model, "swap")
    made = opt.state_dict()
    assert made["state"] == {} and set(made) == {"state", "param_groups"}, made.keys()
    assert not opt.opened and len(opt.state) == 0
    opt.load_state_dict(made)
    opt.load_state_dict(state_dict=opt.state_dict())
    assert not opt.opened
    schedule = LambdaLR(opt, lambda s: 0.5)  # the schedule's groups are the optimizer's
    assert opt.param_groups[0]["lr"] == rate(model) * 0.5
    schedule.step()
    assert not (Path("swap").exists() and any(Path("swap").iterdir())), "something was written"
    a = train(model, opt, 0, 3)
    plain = seeded(GPT)
    other = make_opt(plain, "other")
    LambdaLR(other, lambda s: 0.5)
    assert a == train(plain, other, 0, 3)
    opt.close()
    other.close()
    return ""


@row("keys of groups and states are fixed, states are torch's")
def keys() -> str:
    model = seeded(GPT)
    opt = make_opt(model, "swap")
    before = [set(g) for g in opt.param_groups]
    saved_before = [set(g) for g in opt.state_dict()["param_groups"]]
    opt.open()
    at_open = {n: set(s) for n, s in opt.state_dict()["state"].items()}
    train(model, opt, 0, 2)
    made = opt.state_dict()
    assert [set(g) for g in opt.param_groups] == before, "keys of groups changed"
    assert [set(g) for g in made["param_groups"]] == saved_before, "keys of saved groups changed"
    extra = opt.state_dict()
    for g in extra["param_groups"]:
        g["initial_lr"] = 0.5
    opt.load_state_dict(extra)
    names = [n for g in opt.param_groups for n in g["param_names"]]
    assert len(made["state"]) == len(names)
    for i, name in enumerate(names):
        p = dict(model.named_parameters())[name]
        state = made["state"][i]
        want = {"momentum_buffer"} if i < len(split(model)[0]) else {"step", "exp_avg",
                                                                      "exp_avg_sq"}
        assert set(state) == want == at_open[i], (name, set(state), at_open[i])
        for key, value in state.items():
            assert isinstance(value, torch.Tensor) and value.dtype is torch.float32, (name, key)
            assert value.shape == (torch.Size([]) if key == "step" else p.shape), (name, key)
        if "step" in state:
            assert float(state["step"]) == 2.0
        assert set(opt.state[p]) == want and p in opt.state
        for key in want - {"step"}:
            assert same_bits(opt.state[p][key], state[key]), (name, key)
    assert same_bits(opt.state_of(names[0], "momentum_buffer"),
                     made["state"][0]["momentum_buffer"])
    opt.close()
    return f"{len(names)} parameters"


@row("a state_dict is its own: popping keys, later steps, later state_dicts")
def state_dict_is_ours() -> str:
    model = seeded(GPT)
    opt = make_opt(model, "swap")
    train(model, opt, 0, 3)
    first = opt.state_dict()
    copied = {n: {k: v.clone() for k, v in s.items()} for n, s in first["state"].items()}
    train(model, opt, 3, 5)
    second = opt.state_dict()
    for n in copied:
        check_same(dict(first["state"][n]), copied[n], f"{n}: a later step wrote into it")
    moved = [n for n in copied if not all(torch.equal(second["state"][n][k], copied[n][k])
                                          for k in copied[n])]
    assert len(moved) == len(copied), "the second state_dict() is the first"
    keep = {n: {k: v.clone() for k, v in s.items()} for n, s in second["state"].items()}
    second["state"].pop(0)
    for g in second["param_groups"]:
        g.pop("params")
        g.pop("lr")
    second["state"][1].pop("momentum_buffer")
    third = opt.state_dict()
    assert third["state"].keys() == keep.keys() and "lr" in opt.param_groups[0]
    for n in keep:
        check_same(dict(third["state"][n]), keep[n], f"{n}: popping from a state_dict changed it")
    opt.close()
    for n in copied:
        check_same(dict(first["state"][n]), copied[n], f"{n}: closing changed it")
    return ""


@row("state_dict does not disturb: the run with it has the bits of one without")
def state_dict_disturbs_nothing() -> str:
    def run(look: bool, swap: str):
        model = seeded(GPT)
        opt = make_opt(model, swap, budget="least", tile="4KiB")
        losses = []
        for step in range(8):
            losses += train(model, opt, step, step + 1)
            if look and step % 2:
                opt.state_dict()
                opt.snapshot()
                opt.state_of("blocks.0.qkv.weight", "momentum_buffer")
        opt.close()
        return losses, weights_of(model)
    a, b = run(False, "a"), run(True, "b")
    assert a[0] == b[0]
    check_same(a[1], b[1], "weights")
    return ""


@row("checkpoint='reference': plain types, a few bytes, found again")
def reference() -> str:
    def first():
        model = seeded(GPT)
        opt = make_opt(model, "swap", checkpoint="reference")
        train(model, opt, 0, 5)
        made = opt.state_dict()
        assert made["state"] == {}, "a reference holds tensors"
        assert made["ebb"]["step"] == 5, made["ebb"]
        saved(opt, "optimizer.pt")
        torch.save(model.state_dict(), "model.pt")
        kept = os.path.getsize("optimizer.pt")
        assert kept < 20000, kept
        opt.close()
        losses = []
        return kept, losses, weights_of(model)

    def second():
        model = seeded(GPT, seed=4)
        model.load_state_dict(torch.load("model.pt", weights_only=True))
        opt = make_opt(model, "swap", checkpoint="reference")
        opt.load_state_dict(torch.load("optimizer.pt", weights_only=True))
        opt.open()
        assert opt.steps == 5, opt.steps
        losses = train(model, opt, 5, 9)
        opt.snapshot(wait=True)
        opt.close()
        return losses

    def stale():
        import ebb
        model = seeded(GPT, seed=4)
        opt = make_opt(model, "swap", checkpoint="reference")
        with raises(ebb.Error, within=5) as caught:
            opt.load_state_dict(torch.load("optimizer.pt", weights_only=True))
            opt.open()
        return str(caught[0])
    size, _, _ = apart(first)
    want, _ = apart(whole_run, 9, "other")
    got = apart(second)
    assert got == want[5:], f"{worst(got, want[5:]):.1e}"
    return f"{size} B; one that has gone on: {apart(stale)}"


@row("loaded and saved before the first step: nothing is lost")
def loaded_and_saved() -> str:
    want = apart(saving_run, "a", 5, 9)

    def pass_on():
        model = seeded(GPT, seed=3)
        model.load_state_dict(torch.load("model.pt", weights_only=True))
        opt = make_opt(model, "b")
        opt.load_state_dict(torch.load("optimizer.pt", weights_only=True))
        saved(opt, "optimizer.pt")
        opt.close()
    apart(pass_on)
    got = apart(loading_run, "c", 5, 9, False)
    assert got[0] == want[0], f"{worst(got[0], want[0]):.1e}"
    check_same(got[1], want[1], "weights")
    return ""


@row("Muon alone: its count of steps comes back too; groups of torch's containers")
def muon_alone() -> str:
    import ebb.torch
    model = seeded(GPT)
    opt = ebb.torch.Muon(split(model)[0], lr=0.01, swap="a")
    train(model, opt, 0, 5)
    torch.save(opt.state_dict(), "optimizer.pt")
    other = seeded(GPT)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    twin = ebb.torch.Muon(split(other)[0], lr=0.01, swap="b")
    twin.load_state_dict(torch.load("optimizer.pt", weights_only=True))
    twin.open()
    assert twin.steps == 5, f"5 steps came back as {twin.steps}"
    assert train(other, twin, 5, 7) == train(model, opt, 5, 7)
    keys = set(opt.param_groups[0])
    theirs = torch.optim.Muon(split(other)[0]).state_dict()["param_groups"][0]
    into = opt.state_dict()
    into["param_groups"][0] = theirs
    opt.load_state_dict(into)
    assert set(opt.param_groups[0]) == keys, set(opt.param_groups[0]) ^ keys
    into["param_groups"][0] = {**theirs, "maximize": True}
    with raises(ValueError, RuntimeError):
        opt.load_state_dict(into)
    opt.close()
    twin.close()
    return ""


@row("load_state_dict refuses what does not fit, and changes nothing")
def unfit() -> str:
    model = seeded(GPT)
    opt = make_opt(model, "swap")
    train(model, opt, 0, 3)
    kept = {n: {k: v.clone() for k, v in s.items()} for n, s in opt.state_dict()["state"].items()}
    last = max(kept)
    for what in ("groups", "shape", "key", "missing", "no tensor", "complex", "count"):
        bad = opt.state_dict()
        if what == "groups":
            bad["param_groups"] = bad["param_groups"][:1]
        elif what == "shape":
            bad["state"][0]["momentum_buffer"].fill_(7)
            bad["state"][last]["exp_avg"] = torch.ones(3, 3)
        elif what == "key":
            bad["state"][0] = {"exp_avg": torch.ones_like(bad["state"][0]["momentum_buffer"])}
        elif what in ("no tensor", "complex", "count"):
            bad["state"][0]["momentum_buffer"].fill_(7)
            value = {"no tensor": 3, "complex": bad["state"][last]["exp_avg"] * 1j,
                     "count": torch.tensor(-1.0)}[what]
            bad["state"][last]["step" if what == "count" else "exp_avg"] = value
        else:
            bad["state"][0]["momentum_buffer"].fill_(7)
            del bad["state"][last]["exp_avg_sq"]
        with raises(ValueError, KeyError, RuntimeError, TypeError):
            opt.load_state_dict(bad)
        now = opt.state_dict()["state"]
        for n in kept:
            check_same(dict(now[n]), kept[n], f"after a bad {what}: {n}")
    opt.close()
    return ""


@row("close(), then again; a with block; what no snapshot has is said")
def closing() -> str:
    import warnings
    model = seeded(Net)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with make_opt(model, "a") as opt:
            train(model, opt, 0, 2, net_batch)
        opt.close()
    assert any(issubclass(w.category, RuntimeWarning) for w in heard), "unsaved steps: no word"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        opt = make_opt(seeded(Net), "b")
        opt.open()
        opt.snapshot(wait=True)
        opt.close()
        with make_opt(model := seeded(Net), "d") as opt:
            train(model, opt, 0, 2, net_batch)
            opt.snapshot()  # durable when close() has returned
        with make_opt(seeded(Net), "d", resume="store") as opt:
            opt.open()
            assert opt.steps == 2
        make_opt(seeded(Net), "c").close()  # never opened
    said = [w for w in heard if issubclass(w.category, RuntimeWarning) and "ebb" in str(w.message)]
    assert not said, [str(w.message) for w in said]
    return ""


@row("a state dict without states begins anew, before the first step and later")
def reset() -> str:
    import ebb.torch
    figures = []
    for opened in (True, False):
        ms = []
        for kind in ("torch", "ebb"):
            model = seeded(Net)
            opt = (torch.optim.AdamW(model.named_parameters(), lr=1e-2) if kind == "torch" else
                   ebb.torch.AdamW(model.named_parameters(), lr=1e-2, swap=f"a{opened}"))
            fresh = copy.deepcopy(opt.state_dict())
            losses_of(model, [opt], 0, 4, net_batch)
            if not opened:  # a state dict that was loaded is given up again
                late = copy.deepcopy(opt.state_dict())
                opt = (torch.optim.AdamW(model.named_parameters(), lr=1e-2) if kind == "torch" else
                       ebb.torch.AdamW(model.named_parameters(), lr=1e-2, swap="b"))
                opt.load_state_dict(late)
            opt.load_state_dict(fresh)
            losses_of(model, [opt], 4, 7, net_batch)
            assert float(opt.state_dict()["state"][0]["step"]) == 3.0
            ms.append(weights_of(model))
        assert opt.steps == 3, opt.steps
        away = max(float((ms[0][n] - ms[1][n]).abs().max()) for n in ms[0])
        assert away <= 1e-6, (opened, away)
        figures.append(f"{away:.1e}")
    return ", ".join(figures)


@row("torch.optim.Muon's settings come in with its state dict, and ours go into it")
def muons_settings() -> str:
    import ebb
    import ebb.torch
    figures, default = [], {}
    places = places_of(Net, None)

    def apart_by(one: dict, other: dict) -> float:
        return max(float((one[n] - other[n]).abs().max()) for n in one)

    def go(model, opt, first: int, last: int) -> None:
        for step in range(first, last):
            hand_gradients(model, places, step)
            opt.step()
    for settings in ({}, dict(adjust_lr_fn="match_rms_adamw"), dict(nesterov=False),
                     dict(eps=100.0), dict(ns_coefficients=(3.0, -3.2, 1.2)), dict(ns_steps=2),
                     dict(ns_coefficients=(2.0, -1.5, 0.5), ns_steps=7),
                     dict(adjust_lr_fn="original")):
        ms = []
        for kind in ("torch", "ebb", "ebb and back"):
            model = seeded(Net)
            params = split(model)[0]
            opt = torch.optim.Muon(params, lr=0.02, **settings)
            go(model, opt, 0, 3)
            for step, way in enumerate((kind.split(" and ") * 2)[:2], 3):
                made = copy.deepcopy(opt.state_dict())
                opt = (ebb.torch.Muon(params, swap=f"a{len(figures)}{kind}{step}") if way == "ebb"
                       else torch.optim.Muon(params))
                opt.load_state_dict(made)
                go(model, opt, step, step + 1)
            ms.append(weights_of(model))
        default = default or ms[0]
        away = max(apart_by(other, ms[0]) for other in ms[1:])
        effect = apart_by(default, ms[0]) or 0.01  # bf16's roundings are a part of it
        assert away <= effect / 2, (settings, away, effect)
        figures.append(f"{away:.0e} of {effect:.0e}")
    params = split(seeded(Net))[0]
    opt = ebb.torch.Muon(params, swap="b")
    opt.open()
    for settings in (dict(nesterov=False), dict(adjust_lr_fn="match_rms_adamw"), dict(ns_steps=2)):
        made = opt.state_dict()
        made["param_groups"][0].update(settings, lr=0.5)
        with raises(ebb.StateError, ValueError, says="fixed"):
            opt.load_state_dict(made)
        assert opt.param_groups[0]["lr"] != 0.5, "half a state dict was taken"
    opt.close()
    return ", ".join(figures)


@row("a momentum that is a sum is none that is an EMA; Adam's without decay is AdamW's")
def kinds_of_momentum() -> str:
    import ebb
    import ebb.torch
    params = split(seeded(Net))[0]
    for mine, theirs in (("torch", "moonlight"), ("moonlight", "torch"), ("dion", "keller")):
        made = ebb.torch.Muon(params, swap="a", preset=theirs).state_dict()
        made["state"] = {i: {"momentum_buffer": torch.ones_like(p)}
                         for i, (_, p) in enumerate(params)}
        opt = ebb.torch.Muon(params, swap="b", preset=mine)
        with raises(ebb.LayoutError, says=("factor of 20", f"preset={theirs!r}")):
            opt.load_state_dict(made)
        assert "ns_steps" not in ebb.torch.Muon(params, swap="a", preset="moonlight").state_dict()[
            "param_groups"][0], "torch's Muon would take a sum for an EMA"
    for decay in (0.0, 0.1):
        adam = torch.optim.Adam(params, weight_decay=decay).state_dict()
        opt = ebb.torch.AdamW(params, swap="c")
        if decay:
            with raises(ValueError, says="decoupled_weight_decay"):
                opt.load_state_dict(adam)
        else:
            opt.load_state_dict(adam)
            assert opt.param_groups[0]["weight_decay"] == 0.0
    return ""


@row("hooks of state dicts, lr as a tensor, last_epoch: as torch has them")
def hooks_and_lr() -> str:
    import ebb.torch
    said = {}
    for kind in ("torch", "ebb"):
        model, seen = seeded(Net), []

        def make():
            params, lr = model.named_parameters(), torch.tensor(0.1)
            return (torch.optim.AdamW(params, lr=lr) if kind == "torch" else
                    ebb.torch.AdamW(params, lr=lr, swap=f"a{len(list(Path().glob('a*')))}"))
        opt = make()
        opt.register_state_dict_pre_hook(lambda *_: seen.append("before"))
        opt.register_state_dict_post_hook(lambda _, made: {**made, "mine": 1})
        opt.register_load_state_dict_pre_hook(lambda _, given: seen.append(given.pop("mine")))
        opt.register_load_state_dict_post_hook(lambda *_: seen.append("behind"))
        schedule = LambdaLR(opt, lambda step: 1 / (1 + step))
        for _ in range(3):
            losses_of(model, [opt], 0, 1, net_batch)
            schedule.step()
        opt.load_state_dict(opt.state_dict())
        made = opt.state_dict()
        other = make()
        other.load_state_dict(made)
        opt.param_groups[0]["lr"].fill_(0.5)
        LambdaLR(other, lambda step: 1 / (1 + step), last_epoch=2)
        said[kind] = seen, float(other.param_groups[0]["lr"])
    assert said["torch"] == said["ebb"], said
    return str(said["ebb"])


@row("torch.set_default_dtype and set_default_device change no state dict")
def default_kinds() -> str:
    model = seeded(Net)
    import ebb.torch
    opt = ebb.torch.Muon(model, lr=1e-3, swap="swap")
    losses_of(model, [opt], 0, 2, net_batch)
    want = {n: {k: v.clone() for k, v in s.items()} for n, s in opt.state_dict()["state"].items()}
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")):
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)
        try:
            made = opt.state_dict()
            check_states(made["state"], want)
            opt.state_of("up.weight", "momentum_buffer")
            part = {**made, "state": {k: v for k, v in made["state"].items() if k}}
            opt.load_state_dict(part)
            opt.load_state_dict(made)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device("cpu")
        check_states(opt.state_dict()["state"], want)
    opt.close()
    return ""


if __name__ == "__main__":
    run_rows()
