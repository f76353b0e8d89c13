"""More rows of test_resume.py."""
import copy
import os
from pathlib import Path
import torch
from torch.optim.lr_scheduler import LambdaLR

from resume_runs import loading_run, make_opt, saved, saving_run, train, whole_run
from worlds import (apart, check_same, GPT, Net, net_batch, raises, rate, row, run_rows,
                    same_bits, seeded, split, weights_of, worst)


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
    for what in ("groups", "shape", "key", "missing"):
        bad = opt.state_dict()
        if what == "groups":
            bad["param_groups"] = bad["param_groups"][:1]
        elif what == "shape":
            bad["state"][0]["momentum_buffer"].fill_(7)
            bad["state"][last]["exp_avg"] = torch.ones(3, 3)
        elif what == "key":
            bad["state"][0] = {"exp_avg": torch.ones_like(bad["state"][0]["momentum_buffer"])}
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


if __name__ == "__main__":
    run_rows()
