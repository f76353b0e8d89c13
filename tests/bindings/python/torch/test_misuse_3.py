"""More rows of test_misuse.py."""
import copy
import os
import pickle
import signal
import threading
import time
import warnings
from pathlib import Path
import torch

from misuse_runs import (_one_bad_rank, _one_rank_alone, _raises_before_step, go,
                         hand_groups_without_lr, made, state_bits)
from worlds import (apart, check_same, hand_groups, Net, net_batch, raises, ranks, row,
                    run_rows, same_bits, seeded, split, weights_of)


@row("add_param_group: before opening taken, afterwards refused with what to do")
def add_group() -> str:
    import ebb
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(split(model)[0], lr=0.01, swap="swap")
    opt.add_param_group(dict(params=split(model)[1], algorithm="adamw", lr=1e-3))
    assert len(opt.param_groups) == 2 and opt.param_groups[1]["param_names"]
    with raises(ValueError):  # twice
        opt.add_param_group(dict(params=split(model)[1], algorithm="adamw"))
    assert len(opt.param_groups) == 2, "a refused group stays"
    with raises(ValueError):
        opt.add_param_group(dict(params=[torch.nn.Parameter(torch.zeros(3))]))
    assert len(opt.param_groups) == 2, "a refused group stays"
    go(model, opt, 0)
    late = torch.nn.Parameter(torch.zeros(3))
    with raises(ebb.Error, says="resume"):
        opt.add_param_group(dict(params=[("late", late)], algorithm="adamw"))
    assert len(opt.param_groups) == 2
    go(model, opt, 1)
    opt.close()
    return ""


@row("deepcopy and pickle of an open one: TypeError")
def copies() -> str:
    _, opt = made()
    for how in (copy.deepcopy, pickle.dumps, copy.copy):
        with raises(TypeError, says="state_dict"):
            how(opt)
    opt.close()
    return ""


@row("gradients None: as torch; nan and inf: skipped, no bit moves")
def none_and_nan() -> str:
    import ebb.torch
    model, other = seeded(Net), seeded(Net)
    opt = ebb.torch.Muon(hand_groups(model), swap="swap")
    muon, adamw = split(other)
    pair = [torch.optim.Muon(muon, lr=0.005, weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]
    for step in range(6):
        for one, optimizers in ((model, [opt]), (other, pair)):
            one.zero_grad()
            one(*net_batch(step)).backward()
            if step in (0, 3):
                one.up.weight.grad = None
                one.down.bias.grad = None
            before = weights_of(one)
            for each in optimizers:
                each.step()
            if step in (0, 3):
                assert torch.equal(before["up.weight"], one.up.weight), "moved without gradient"
                assert torch.equal(before["down.bias"], one.down.bias), "moved without gradient"
    away = max(float((a - b).detach().abs().max())
               for a, b in zip(model.parameters(), other.parameters()))
    assert away <= 2e-3, f"weights differ by {away}"
    state, theirs = opt.state_dict()["state"], pair[1].state_dict()["state"]
    steps = {n: float(state[2 + i]["step"]) for i, n in enumerate(n for n, _ in adamw)}
    want = {n: float(theirs[i]["step"]) for i, n in enumerate(n for n, _ in adamw)}
    assert steps == want, (steps, want)
    for bad in (float("nan"), float("inf")):
        kept, weights, before = state_bits(opt), weights_of(model), opt.steps
        model.zero_grad()
        model(*net_batch(9)).backward()
        model.down.weight.grad[1, 2] = bad
        opt.step()
        assert opt.last.skipped and opt.last.norm != opt.last.norm, opt.last
        assert opt.steps == before, "a skipped step counts"
        check_same(state_bits(opt), kept, "state")
        check_same(weights_of(model), weights, "weights")
    go(model, opt, 9)
    assert not opt.last.skipped
    model.zero_grad()
    opt.step()  # none has a gradient
    opt.close()
    return f"weights {away:.1e}"


@row("what would change the result is refused: maximize, amsgrad; bad values too")
def refused_settings() -> str:
    import ebb
    import ebb.torch
    model = seeded(Net)
    named = list(model.named_parameters())
    for extra in (dict(maximize=True), dict(amsgrad=True)):
        with raises(ValueError, TypeError, ebb.Error, says=next(iter(extra))):
            ebb.torch.AdamW([dict(params=named, **extra)], swap="swap")
    opt = ebb.torch.AdamW([dict(params=named, fused=None, foreach=False, capturable=False,
                                maximize=False, amsgrad=False, differentiable=False)], swap="swap")
    assert opt.param_groups[0]["maximize"] is False
    bad = [dict(lr=-1.0), dict(weight_decay=-1.0), dict(momentum=-0.1), dict(betas=(1.0, 0.9)),
           dict(eps=-1.0), dict(preset="tourch"), dict(budget="lots"), dict(budget="-1GiB"),
           dict(budget="3%%"), dict(masters="no"), dict(placement="no"), dict(resume="no"),
           dict(checkpoint="no"), dict(tile="x"),
           dict(momentum_dtype=torch.float16), dict(lr=float("nan")), dict(threads=-1),
           dict(lr=torch.tensor([1.0, 2.0]))]
    missed = []
    for options in bad:
        try:
            opt = ebb.torch.Muon(hand_groups_without_lr(model), **{"swap": "bad", **options})
            opt.open()
            opt.close()
            missed.append(str(options))
        except (ValueError, TypeError, ebb.Error) as error:
            print(options, "->", type(error).__name__, error)
        if Path("bad").exists() and any(n for n in os.listdir("bad") if n.startswith("store")):
            missed.append(f"{options} left a store")
            break
    assert not missed, f"taken: {missed}"
    with raises(TypeError, ValueError):
        ebb.torch.AdamW(named)  # no swap
    with raises(FileNotFoundError, ValueError, ebb.Error, says="nowhere"):
        ebb.torch.AdamW(named, swap="nowhere/there/run").open()
    Path("file").write_text("x")
    with raises(OSError, ValueError, ebb.Error, says="file"):
        ebb.torch.AdamW(named, swap="file").open()
    return f"{len(bad)} bad values"


@row("a misspelled key of a group is not taken in silence")
def misspelled() -> str:
    import ebb
    import ebb.torch
    model = seeded(Net)
    groups = hand_groups(model)
    groups[0]["weigth_decay"] = 0.3
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            ebb.torch.Muon(groups, swap="swap")
            said = "; ".join(str(w.message) for w in heard)
        except (ValueError, TypeError, ebb.Error) as error:
            said = str(error)
    assert "weigth_decay" in said, "taken without a word"
    return said


@row("no names: ValueError with the line to type; a setting of one step gone bad")
def no_names() -> str:
    import ebb
    import ebb.torch
    model = seeded(Net)
    for params in (model.parameters(), list(model.parameters()),
                   [dict(params=list(model.parameters()))]):
        with raises(ValueError, says="named_parameters()"):
            ebb.torch.AdamW(params, swap="swap")
    with raises(ValueError, TypeError):
        ebb.torch.AdamW([], swap="swap")
    twice = torch.nn.Parameter(torch.zeros(3))
    with raises(ValueError, says="name"):
        ebb.torch.AdamW([("a", twice), ("a", torch.nn.Parameter(torch.zeros(3)))], swap="swap")
    model, opt = made()
    before = weights_of(model)
    for key, value in (("lr", float("nan")), ("lr", -1.0), ("momentum", 2.0), ("lr", "fast")):
        good = opt.param_groups[0][key]
        opt.param_groups[0][key] = value
        with raises(ValueError, TypeError, ebb.Error):
            opt.step()
        check_same(weights_of(model), before, f"weights after {key}={value}")
        opt.param_groups[0][key] = good
    opt.step()
    assert opt.steps == 2
    opt.close()
    return ""


@row("a closure that raises: nothing changed, the next step works")
def raising_closure() -> str:
    model, opt = made()
    before = weights_of(model)

    def broken():
        raise KeyError("mine")
    with raises(KeyError):
        opt.step(broken)
    check_same(weights_of(model), before, "weights")
    go(model, opt, 1)
    assert opt.steps == 2
    opt.close()
    return ""


@row("Ctrl-C in a long step is heard soon", limit=60)
def interrupted() -> str:
    def child() -> tuple[float, float]:
        import ebb.torch
        p = torch.nn.Parameter(torch.zeros(2000, 2000))
        p.grad = torch.ones_like(p)
        opt = ebb.torch.AdamW([("w", p)], swap="swap", budget="least", tile="64KiB", threads=1)
        opt.step()
        one = opt.last.seconds
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's ignores it
        threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        sent = time.monotonic() + 0.15
        try:
            for _ in range(100):
                opt.step()
            return -1.0, one
        except KeyboardInterrupt:
            took = time.monotonic() - sent
        opt.close()
        return took, one
    took, one = apart(child)
    assert 0 <= took <= 1, (took, one)
    return f"after {took:.2f} s, a step takes {one:.2f} s"


@row("a master that is written while a step is under way: said, and the last snapshot goes on")
def written_in_a_step() -> str:
    def child() -> str:
        import ebb.torch
        p = torch.nn.Parameter(torch.zeros(2000, 2000))
        p.grad = torch.ones_like(p)
        made = dict(swap="swap", budget="least", tile="64KiB", threads=1)
        opt = ebb.torch.AdamW([("w", p)], **made)
        opt.step()
        opt.snapshot(wait=True)
        kept = p.detach().clone()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        while opt._run._under_way is None:  # Ctrl-C may come between two steps
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    opt.step()
            except KeyboardInterrupt:
                pass
        with torch.no_grad():
            p.add_(1)
        with raises(ebb.StateError, says="written while a step was under way") as caught:
            opt.step()
        opt.close()
        opt = ebb.torch.AdamW([("w", p)], resume="store", **made)
        opt.open()
        assert opt.steps == 1 and same_bits(p.detach(), kept), "another state"
        opt.close()
        return str(caught[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that no snapshot has
        return apart(child)


@row("gradients of a step that Ctrl-C left: zero_grad() waits for it, other writes are said")
def gradients_in_a_step() -> str:
    def child(how: str, interrupt: bool):
        import ebb.torch
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)])
        for p in model.parameters():
            p.data = torch.sin(torch.arange(1024.0 * 1024)).view(1024, 1024)
            p.grad = torch.cos(torch.arange(1024.0 * 1024)).view(1024, 1024)
        opt = ebb.torch.Muon(model, lr=0.02, swap=f"swap-{how}-{interrupt}", budget="least",
                             threads=1, chunk="4MiB")
        opt.open()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupt:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            opt.step()
            assert not interrupt, "no step was interrupted"
        except KeyboardInterrupt:
            assert interrupt and opt._run._under_way is not None
        if how == "written":
            for p in model.parameters():
                p.grad.mul_(-1)
            with raises(ebb.StateError, says="gradients were written", within=20):
                opt.snapshot()
            return None
        opt.zero_grad(set_to_none=how == "none")
        opt.snapshot()
        opt.close()
        return weights_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = apart(child, "none", False)
        for how in ("zeros", "none"):
            check_same(apart(child, how, True), want, how)
        apart(child, "written", True)
    return ""


@row("Ctrl-C while it opens: heard when it is open, and nothing is left behind")
def interrupted_open() -> str:
    import ebb.torch
    heard = 0

    def ring(*_) -> None:
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, ring)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    model = torch.nn.Linear(300, 300)
    for i in range(20):
        opt = ebb.torch.AdamW(model, swap="swap", resume="store")
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0005 * i)
            opt.open()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            heard += 1
        opt.open()
        opt.close()
        again = ebb.torch.AdamW(model, swap="swap", resume="store")
        again.open()
        again.close()
    assert heard, "none was interrupted"
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    return f"{heard} of 20"


@row("warnings as errors: an edit of parameters is said once, and taken")
def warnings_as_errors() -> str:
    model, opt = made(masters="engine")
    with torch.no_grad():
        model.up.weight.add_(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises(RuntimeWarning, says="changed since the last step"):
            opt.step()
        assert opt.steps == 1
        opt.step()
        assert opt.steps == 2 and float(model.up.weight.detach().mean()) > 0.9
    opt.close()
    return ""


@row("a disk that fills up while state_dict() writes: an error, no signal")
def full_disk() -> str:
    import resource

    def child() -> str:
        import ebb.torch
        p = torch.nn.Parameter(torch.zeros(1000, 1000))
        p.grad = torch.ones_like(p)
        opt = ebb.torch.AdamW([("w", p)], swap="swap")
        opt.step()
        opt.snapshot(wait=True)
        # A file may not grow over 1 MB: what posix_fallocate meets on a full disk, nearly.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        with raises(ebb.NoSpace, says=("swap", "as much disk")) as caught:
            opt.state_dict()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        opt.step()
        assert opt.state_dict()["state"][0]["exp_avg"].shape == p.shape
        opt.close()
        return f"{type(caught[0]).__name__}: {caught[0]}"
    return apart(child)


@row("the process ends with the optimizer open, in a with block, by an exception")
def process_ends() -> str:
    import subprocess
    import sys
    for end in ("pass", "raise SystemExit", "sys.exit(0)", "del o", "global_o = o"):
        code = (f"import sys, torch, ebb.torch\np = torch.nn.Parameter(torch.zeros(8, 8))\n"
                f"p.grad = torch.ones(8, 8)\n"
                f"o = ebb.torch.AdamW([('w', p)], swap='s{len(end)}')\no.step()\no.snapshot()\n"
                f"{end}\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 0, (end, done.returncode, done.stderr[-500:])
        for word in ("Traceback", "Exception ignored"):
            assert word not in done.stderr, done.stderr
    return ""


@row("a plain world of 2: state_dict on one rank alone: StateError at once, training goes on")
def one_rank_alone() -> str:
    return ranks(2, _one_rank_alone)[0]


@row("a rank that dies, closes or stays away: PeerError on the others, by name")
def peer_gone() -> str:
    figures = []
    for leaves, limit in (("dies", 1.5), ("closes", 1.5), ("stays", 5.0)):
        text, took = ranks(2, _raises_before_step, leaves, dies=(1,))[0]
        assert took <= limit, f"{leaves}: {took:.1f} s"
        assert "1" in text, f"{leaves}: does not name the rank: {text}"
        figures.append(f"{leaves} {took:.2f} s")
    return ", ".join(figures)


@row("one rank opens wrong, has other weights, names, dtypes: all learn it", limit=100)
def one_bad_rank() -> str:
    figures = []
    for what, most in (("weights", 3), ("names", 3), ("lr", 9), ("open", 8), ("grads", 8)):
        said = ranks(2, _one_bad_rank, what, limit=25, together=what == "lr")
        print(what, said)
        for text in said:
            if " after " in text:
                took = float(text.split(" after ")[1].split(" s")[0])
                assert took <= most, f"{what}: {text}"
        figures.append(f"{what}: {said[0][:60]}")
    return "; ".join(figures)


@row("what looks at states or replaces a list by its like is no misuse")
def harmless() -> None:
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(ebb.torch.groups(model), lr=0.02, swap="swap", budget="least")
    for _ in range(4):
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        opt.step()
        with torch.inference_mode():
            norms = [s["momentum_buffer"].norm() for s in opt.state.values()
                     if "momentum_buffer" in s]
        assert norms and all(bool(n.isfinite()) for n in norms)
        opt.param_groups = list(opt.param_groups)
        opt.param_groups[0].update(betas=(0.9, 0.999))
        assert opt.param_groups[0]["momentum"] == 0.9
    opt.close()
    with raises(TypeError, says="timedelta"):
        ebb.torch.AdamW(model, swap="other", peer_timeout=30)


if __name__ == "__main__":
    run_rows()
