"""What is kept over the end of a process: the store, and state_dict()."""
import copy
import shutil
import warnings
import torch
from torch.optim.lr_scheduler import LambdaLR

from resume_runs import (_torch_goes_on, check_states, ddp_saves, discarding, killed_run,
                         loading_run, losses_of, make_opt, refused_without_resume, resumed_run,
                         saving_run, steps_found, train, whole_run)
from worlds import (apart, check_same, GPT, gpt_batch, Net, net_batch, raises, ranks, rate, row,
                    run_rows, same_bits, seeded, split, weights_of, worst)


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


@row("resume=None with a store raises and names its step; the store is whole")
def none_with_store() -> str:
    apart(killed_run, "swap", 7, 1)
    said = apart(refused_without_resume)
    apart(resumed_run, "swap", 7, 9)
    return said


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


@row("state of torch.optim.Muon and AdamW goes on under Ebb")
def from_torch() -> str:
    model = seeded(GPT)
    muon, adamw = split(model)
    pair = [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]

    losses_of(model, pair, 0, 5)
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
    got = losses_of(mine, [opt], 5, 9)
    theirs = losses_of(model, pair, 5, 9)
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


@row("DDP: torch's helpers, which all ranks call, save and load behind consolidate(to=None)")
def ddp_helpers() -> str:
    return f"steps {ranks(2, ddp_saves)}"


@row("what is kept now is the present state, whatever is still being written")
def kept_now() -> str:
    import ebb
    import ebb.torch
    put_off = 0

    def make(folder: str, **options):
        torch.manual_seed(0)
        big, small = torch.nn.Parameter(torch.zeros(3000, 3000)), torch.nn.Parameter(torch.zeros(8))
        return small, big, ebb.torch.AdamW([("big", big), ("small", small)], swap=folder,
                                           budget="all", masters="engine", **options)

    def two_steps(how: str, folder: str, slots: int):
        """A snapshot of all is being written when the second step, a small one, has been made."""
        checkpoint = "reference" if how == "reference" else "tensors"
        small, big, opt = make(folder, slots=slots, checkpoint=checkpoint)
        big.grad, small.grad = torch.ones_like(big), torch.ones(8)
        opt.step()
        if how == "pinned":
            opt.export(f"{folder}-out", wait=False)
        else:
            opt.snapshot()
        big.grad = None
        opt.step()
        opt.blobs["at"] = b"2"
        return small, opt
    for how in ("snapshot", "export", "reference", "pinned", "put off"):
        folder = how.replace(" ", "-")
        small, opt = two_steps(how, folder, 2 if how == "pinned" else 3)
        want = small.detach().clone()
        made = None
        if how == "export":
            opt.export("out")
            assert same_bits(ebb.open("out")["small"].torch(), want), "an older state"
        elif how == "reference":
            made = opt.state_dict()
        elif how == "put off":
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                for _ in range(3):
                    opt.step()
                    opt.snapshot()
            put_off = len(heard)
            assert put_off <= 1, [str(w.message) for w in heard]
            opt.snapshot(wait=True)
        else:
            opt.snapshot(wait=True)
        steps = opt.steps
        opt.close()
        small, _, opt = make(folder, resume=None if made else "store")
        if made:
            opt.load_state_dict(made)
        opt.open()
        assert opt.steps == steps and opt.blobs["at"] == b"2", (how, opt.steps, steps)
        assert how == "put off" or same_bits(small.detach(), want), how
        opt.close()
        shutil.rmtree(folder)
    return f"put off {put_off} times"


if __name__ == "__main__":
    run_rows()
