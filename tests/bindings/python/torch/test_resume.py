"""What is kept over the end of a process: the store, and state_dict()."""
import copy
import os
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR

from worlds import (GPT, Net, apart, check_same, gpt_batch, hand_groups, net_batch, raises,
                    rate, row, run_rows, same_bits, seeded, split, weights_of, worst)


def make_opt(model, swap: str, **options):
    import ebb.torch
    return ebb.torch.Muon(hand_groups(model), swap=swap, **options)


def train(model, opt, first: int, last: int, batch=gpt_batch) -> list[float]:
    losses = []
    for step in range(first, last):
        loss = model(*batch(step))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return losses


def whole_run(steps: int, swap: str, **options) -> tuple[list[float], dict]:
    model = seeded(GPT)
    opt = make_opt(model, swap, **options)
    losses = train(model, opt, 0, steps)
    opt.close()
    return losses, weights_of(model)


def killed_run(swap: str, at: int, beyond: int, **options) -> tuple[list[float], dict]:
    """Snapshots at step `at`, makes a few more, and is gone without a word."""
    model = seeded(GPT)
    opt = make_opt(model, swap, **options)
    losses = train(model, opt, 0, at)
    kept = weights_of(model)
    generation = opt.snapshot(wait=True)
    assert isinstance(generation, int) and generation > 0, generation
    train(model, opt, at, at + beyond)
    return losses, kept  # the process ends here, the engine open


def resumed_run(swap: str, at: int, steps: int, **options) -> tuple[list[float], dict, dict]:
    model = seeded(GPT, seed=5)  # other weights: the store's must come
    opt = make_opt(model, swap, resume="store", **options)
    opt.open()
    assert opt.opened and opt.steps == at, f"opened {opt.opened} at step {opt.steps}, not {at}"
    assert str(at) in opt.origin, opt.origin
    begun = weights_of(model)
    losses = train(model, opt, at, steps)
    opt.close()
    return losses, weights_of(model), begun


@row("resume='store' in a new process goes on with the same bits")
def store_goes_on() -> str:
    for name, options in (("all", {}), ("least", dict(budget="least", tile="4KiB"))):
        losses, weights = apart(whole_run, 12, f"a-{name}")
        before, kept = apart(lambda: killed_run(f"b-{name}", 7, 2, **options))
        after, end, begun = apart(lambda: resumed_run(f"b-{name}", 7, 12, **options))
        check_same(begun, kept, "weights after open()")
        assert before + after == losses, f"{name}: {worst(before + after, losses):.1e}"
        check_same(end, weights, name)
    return "12 steps, killed at 9, resumed at 7"


@row("resume='store' with an empty folder begins anew")
def store_of_nothing() -> str:
    model = seeded(GPT)
    start = weights_of(model)
    opt = make_opt(model, "swap", resume="store")
    opt.open()
    assert opt.steps == 0
    check_same(weights_of(model), start, "weights")
    origin = opt.origin
    opt.close()
    return origin


def refused_without_resume() -> str:
    import ebb
    model = seeded(GPT, seed=5)
    start = weights_of(model)
    opt = make_opt(model, "swap")
    with raises(ebb.Error, says=("7", "resume"), within=5) as caught:
        opt.open()
    check_same(weights_of(model), start, "weights after the refusal")
    model(*gpt_batch(0)).backward()
    with raises(ebb.Error, says="7", within=5):
        opt.step()
    check_same(weights_of(model), start, "weights after the refused step")
    return str(caught[0])


@row("resume=None with a store raises and names its step; the store is whole")
def none_with_store() -> str:
    apart(killed_run, "swap", 7, 1)
    said = apart(refused_without_resume)
    apart(resumed_run, "swap", 7, 9)
    return said


def discarding(swap: str, leave: bool) -> None:
    model = seeded(GPT, seed=5)
    start = weights_of(model)
    opt = make_opt(model, swap, resume="discard")
    opt.open()
    assert opt.steps == 0, opt.steps
    check_same(weights_of(model), start, "weights")
    mine = train(model, opt, 0, 3)
    other = seeded(GPT, seed=5)
    fresh = make_opt(other, swap + "-fresh")
    assert train(other, fresh, 0, 3) == mine, "the discarded store has a say"
    check_same(weights_of(model), weights_of(other), "weights")
    fresh.close()
    if leave:
        opt.snapshot(wait=True)


def steps_found(swap: str) -> int:
    model = seeded(GPT, seed=6)
    opt = make_opt(model, swap, resume="store")
    opt.open()
    steps = opt.steps
    opt.close()
    return steps


@row("resume='discard' begins with the parameters as they are")
def discard() -> str:
    apart(killed_run, "swap", 7, 1)
    apart(discarding, "swap", False)
    found = apart(steps_found, "swap")
    assert found in (0, 7), f"a killed run that discarded left a store of step {found}"
    if found == 7:
        apart(discarding, "swap", True)
    else:
        apart(killed_run, "again", 7, 1)
        apart(discarding, "again", True)
    end = apart(steps_found, "swap" if found == 7 else "again")
    assert end == 3, end
    return f"left by a killed one: step {found}; by a snapshot: step {end}"


@row("a snapshot beside training is of its own step, not of later ones")
def snapshot_beside() -> str:
    def first():
        model = seeded(GPT)
        opt = make_opt(model, "swap", budget="least", tile="4KiB")
        train(model, opt, 0, 5)
        kept = weights_of(model)
        opt.snapshot()
        train(model, opt, 5, 8)
        opt.snapshot(wait=True)
        return kept, weights_of(model)
    _, late = apart(first)
    _, _, begun = apart(resumed_run, "swap", 8, 9)
    check_same(begun, late, "weights")
    return ""


@row("blobs come back; two optimizers of one folder: the second is refused")
def blobs_and_lock() -> str:
    import ebb

    def first():
        model = seeded(Net)
        opt = make_opt(model, "swap")
        train(model, opt, 0, 2, net_batch)
        opt.blobs["data"] = b"\x00\x01position 7"
        opt.blobs["other"] = b"x" * 5000
        opt.snapshot(wait=True)
        opt.blobs["data"] = b"later"

    def second():
        model = seeded(Net)
        opt = make_opt(model, "swap", resume="store")
        opt.open()
        assert opt.blobs["data"] == b"\x00\x01position 7", opt.blobs["data"]
        assert opt.blobs["other"] == b"x" * 5000
        assert opt.blobs.get("none") is None
        with raises(KeyError):
            opt.blobs["none"]
        twin = make_opt(seeded(Net), "swap", resume="store")
        with raises(ebb.Error, within=3) as caught:
            twin.open()
        train(model, opt, 2, 4, net_batch)
        opt.close()
        return f"{type(caught[0]).__name__}: {caught[0]}"
    apart(first)
    return apart(second)


def saved(opt, path: str) -> None:
    torch.save(opt.state_dict(), path)


def saving_run(swap: str, at: int, steps: int) -> tuple[list[float], dict, dict]:
    """Saves at step `at` and goes on."""
    model = seeded(GPT)
    opt = make_opt(model, swap)
    losses = train(model, opt, 0, at)
    saved(opt, "optimizer.pt")
    torch.save(model.state_dict(), "model.pt")
    losses = train(model, opt, at, steps)
    last = opt.state_dict()
    answer = losses, weights_of(model), {n: {k: v.clone() for k, v in s.items()}
                                         for n, s in last["state"].items()}
    opt.close()
    return answer


def loading_run(swap: str, at: int, steps: int, opened_first: bool,
                **options) -> tuple[list[float], dict, dict]:
    model = seeded(GPT, seed=3)
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    opt = make_opt(model, swap, **options)
    if opened_first:
        opt.open()
    opt.load_state_dict(state_dict=torch.load("optimizer.pt", weights_only=True))
    losses = train(model, opt, at, steps)
    assert opt.steps == steps, f"steps {opt.steps} after loading one of {at} and going to {steps}"
    last = opt.state_dict()
    answer = losses, weights_of(model), {n: {k: v.clone() for k, v in s.items()}
                                         for n, s in last["state"].items()}
    opt.close()
    return answer


def check_states(mine: dict, other: dict) -> None:
    assert mine.keys() == other.keys()
    for n in mine:
        check_same(mine[n], other[n], f"state of {n}")


@row("state_dict -> torch.save -> weights_only load -> another folder: same bits")
def round_trip() -> str:
    want = apart(saving_run, "a", 5, 9)
    for name, opened_first in (("b", False), ("c", True)):
        got = apart(loading_run, name, 5, 9, opened_first)
        assert got[0] == want[0], f"opened first {opened_first}: {worst(got[0], want[0]):.1e}"
        check_same(got[1], want[1], f"opened first {opened_first}")
        check_states(got[2], want[2])
    return ""


@row("resume=None, a store in the folder, load_state_dict() before a step: it wins")
def loaded_wins() -> str:
    want = apart(saving_run, "a", 5, 9)
    apart(killed_run, "b", 7, 1)
    got = apart(loading_run, "b", 5, 9, False)
    assert got[0] == want[0], f"{worst(got[0], want[0]):.1e}: the store had a say"
    check_same(got[1], want[1], "weights")
    check_states(got[2], want[2])
    return ""


@row("the file goes on under torch.optim.Muon and AdamW, without ebb")
def into_torch() -> str:
    want = apart(saving_run, "a", 5, 9)
    got = apart(_torch_goes_on)
    away = worst(got, want[0])
    assert away <= 2e-4, away
    return f"{away:.1e}"


def _torch_goes_on() -> list[float]:
    import sys
    model = seeded(GPT, seed=3)
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    muon, adamw = split(model)
    pair = [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]
    file = torch.load("optimizer.pt", weights_only=True)
    groups = file["param_groups"]
    assert len(groups) == 2 and groups[0]["param_names"] == [n for n, _ in muon]
    for one, group in zip(pair, groups):
        into = one.state_dict()
        into["state"] = {i: file["state"][p] for i, p in enumerate(group["params"])}
        one.load_state_dict(into)
    assert "ebb" not in sys.modules
    losses = []
    for step in range(5, 9):
        loss = model(*gpt_batch(step))
        loss.backward()
        for one in pair:
            one.step()
            one.zero_grad()
        losses.append(loss.item())
    return losses


@row("state of torch.optim.Muon and AdamW goes on under Ebb")
def from_torch() -> str:
    model = seeded(GPT)
    muon, adamw = split(model)
    pair = [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]

    def go(a: int, b: int, loss_model, optimizers) -> list[float]:
        losses = []
        for step in range(a, b):
            loss = loss_model(*gpt_batch(step))
            loss.backward()
            for one in optimizers:
                one.step()
                one.zero_grad()
            losses.append(loss.item())
        return losses
    go(0, 5, model, pair)
    mine = seeded(GPT, seed=9)
    mine.load_state_dict(copy.deepcopy(model.state_dict()))
    opt = make_opt(mine, "swap")
    into = opt.state_dict()
    a, b = (one.state_dict()["state"] for one in pair)
    into["state"] = {**a, **{len(muon) + i: s for i, s in b.items()}}
    want = {n: copy.deepcopy(s) for n, s in into["state"].items()}
    opt.load_state_dict(into)
    opt.open()
    for n, one in opt.state_dict()["state"].items():
        for key in want[n]:
            assert torch.equal(one[key].float(), want[n][key].float()), (n, key)
    got = go(5, 9, mine, [opt])
    theirs = go(5, 9, model, pair)
    opt.close()
    away = worst(got, theirs)
    assert away <= 2e-4, away
    return f"{away:.1e}"


@row("the helpers' step of lr 0 and zero gradients opens and counts nothing")
def dummy_step() -> str:
    def run(dummy: bool, swap: str) -> tuple[list[float], dict, int]:
        model = seeded(GPT)
        opt = make_opt(model, swap)
        if dummy:
            rates = [g["lr"] for g in opt.param_groups]
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            for g in opt.param_groups:
                g["lr"] = 0.0
            opt.step(closure=None)
            assert opt.opened and opt.steps == 0, opt.steps
            for g, lr in zip(opt.param_groups, rates):
                g["lr"] = lr
            opt.zero_grad()
            state = opt.state_dict()["state"]
            for n, one in state.items():
                assert not any(bool(t.any()) for t in one.values()), f"state of {n} is not zero"
        losses = train(model, opt, 0, 4)
        steps = opt.steps
        step = [float(s["step"]) for s in opt.state_dict()["state"].values() if "step" in s]
        assert set(step) == {4.0}, step
        opt.close()
        return losses, weights_of(model), steps
    a, b = run(False, "a"), run(True, "b")
    assert a[0] == b[0] and a[2] == b[2] == 4, (a[0], b[0], a[2], b[2])
    check_same(a[1], b[1], "weights")

    # A warm-up that begins at lr 0 has gradients: a real step.
    model = seeded(GPT)
    opt = make_opt(model, "c")
    schedule = LambdaLR(opt, lambda s: s / 4)
    model(*gpt_batch(0)).backward()
    opt.step()
    schedule.step()
    assert opt.steps == 1, f"a warm-up's first step counts {opt.steps}"
    # And zero gradients with lr 0 later: a real step, too.
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for g in opt.param_groups:
        g["lr"] = 0.0
    opt.step()
    assert opt.steps == 2, opt.steps
    opt.close()
    return ""


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
    assert any(issubclass(w.category, ResourceWarning) for w in heard), "unsaved steps: no word"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        opt = make_opt(seeded(Net), "b")
        opt.open()
        opt.snapshot(wait=True)
        opt.close()
        make_opt(seeded(Net), "c").close()  # never opened
    said = [w for w in heard if issubclass(w.category, ResourceWarning) and "ebb" in str(w.message)]
    assert not said, [str(w.message) for w in said]
    return ""


if __name__ == "__main__":
    run_rows()
