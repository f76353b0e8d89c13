"""What users do that they should not: the error comes at once, says what to do, changes nothing."""
import copy
import gc
import os
import pickle
import signal
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from worlds import (Net, apart, check_same, hand_groups, net_batch, raises, ranks, row, run_rows,
                    same_bits, seeded, split, wait_for, weights_of)


def made(swap: str = "swap", seed: int = 0, **options):
    """A net and its optimizer, one step made, gradients of the next there."""
    import ebb.torch
    model = seeded(Net, seed)
    opt = ebb.torch.Muon(hand_groups(model), swap=swap, **options)
    go(model, opt, 0)
    model(*net_batch(1)).backward()
    return model, opt


def go(model, opt, step: int) -> None:
    model.zero_grad()
    model(*net_batch(step)).backward()
    opt.step()
    opt.zero_grad()


def state_bits(opt) -> dict:
    return {f"{n}.{k}": v.clone() for n, s in opt.state_dict()["state"].items()
            for k, v in s.items()}


CALLS = ("step", "open", "state_dict", "snapshot", "take_parameters", "steps", "origin", "store",
         "stats", "state_of", "consolidate_state_dict", "blobs")


def call(opt, what: str):
    if what in ("steps", "origin", "store"):
        return getattr(opt, what)
    if what == "state_of":
        return opt.state_of("up.weight", "momentum_buffer")
    if what == "blobs":
        opt.blobs["a"] = b"b"
        return None
    return getattr(opt, what)()


@row("closed: step, snapshot, ... raise StateError; close again is nothing")
def closed() -> str:
    import ebb
    model, opt = made()
    start = weights_of(model)
    opt.close()
    opt.close()
    assert not opt.opened
    for what in CALLS:
        if what in ("state_dict", "consolidate_state_dict"):
            continue
        with raises(ebb.StateError, says="closed"):
            call(opt, what)
    # A saved file without state would be found out much later. consolidate_state_dict() is called
    # by trainers whenever they like; what it would be for is refused here.
    with raises(ebb.StateError, says="closed"):
        opt.state_dict()
    check_same(weights_of(model), start, "weights")
    opt.zero_grad()
    repr(opt)
    return ""


@row("not opened yet: what needs an engine says open()")
def not_opened() -> str:
    import ebb
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(hand_groups(model), swap="swap")
    for what in ("snapshot", "origin", "store", "stats", "state_of", "blobs"):
        with raises(ebb.StateError, says="open"):
            call(opt, what)
    assert not opt.opened and not Path("swap").exists()
    assert opt.plan() is not None and not Path("swap").exists()
    return str(opt.plan())[:100]


@row("two threads: the second is refused, nothing hangs or breaks")
def two_threads() -> str:
    import ebb
    import ebb.torch
    p = torch.nn.Parameter(torch.zeros(1500, 1000))
    opt = ebb.torch.AdamW([("w", p)], swap="swap", budget="least", tile="64KiB")
    p.grad = torch.ones_like(p)
    opt.step()
    met: list[str] = []

    def steps() -> None:
        for _ in range(4):
            try:
                opt.step()
                met.append("done")
            except ebb.StateError as error:
                met.append(str(error))
    threads = [threading.Thread(target=steps) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
        assert not one.is_alive(), "hangs"
    done = met.count("done")
    refused = [text for text in met if text != "done"]
    assert opt.steps == 1 + done, (opt.steps, done)
    assert refused and all("thread" in text for text in refused), set(refused)
    opt.close()
    return f"{done} steps, {len(refused)} refused"


@row("close() while another thread is in a step: refused or waits, no crash")
def close_beside() -> str:
    import ebb
    import ebb.torch
    p = torch.nn.Parameter(torch.zeros(2000, 1500))
    opt = ebb.torch.AdamW([("w", p)], swap="swap", budget="least", tile="64KiB")
    p.grad = torch.ones_like(p)
    opt.step()
    said: list[str] = []

    def steps() -> None:
        try:
            for _ in range(20):
                opt.step()
            said.append("all steps")
        except ebb.Error as error:
            said.append(f"step: {error}")
    one = threading.Thread(target=steps)
    one.start()
    time.sleep(0.1)
    try:
        opt.close()
        said.append("closed")
    except ebb.Error as error:
        said.append(f"close: {error}")
    one.join(20)
    assert not one.is_alive(), "hangs"
    opt.close()
    p.grad = None
    again = ebb.torch.AdamW([("w", p)], swap="swap", resume="discard")
    again.open()  # the folder is free
    again.close()
    return "; ".join(said)


@row("a forked child: every call answers at once, the parent goes on")
def forked() -> str:
    import ebb
    model, opt = made(budget="least", tile="4KiB")
    slow = []
    for what in (*CALLS, "load_state_dict", "add_param_group", "close", "del", "nothing"):
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            code = 1
            try:
                if what == "load_state_dict":
                    opt.load_state_dict({"state": {0: {"momentum_buffer":
                                                       torch.zeros_like(model.up.weight)}},
                                         "param_groups": opt._packed_groups()
                                         if hasattr(opt, "_packed_groups") else []})
                elif what == "add_param_group":
                    opt.add_param_group({"params": []})
                elif what == "close":
                    opt.close()
                    code = 0
                elif what == "del":
                    del opt
                    gc.collect()
                    code = 0
                elif what == "nothing":
                    code = 0
                else:
                    call(opt, what)
            except (ebb.StateError, ValueError) as error:
                code = 0
                print(f"child, {what}: {error}", flush=True)
            except BaseException as error:
                print(f"child, {what}: {type(error).__name__}: {error}", flush=True)
            if what == "nothing":
                raise SystemExit  # as a worker ends, destructors and all
            os._exit(code)
        status = wait_for(pid, 5)
        took = time.monotonic() - began
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            slow.append(f"{what}: hangs")
        elif os.waitstatus_to_exitcode(status) != 0 and what != "nothing":
            slow.append(f"{what}: {os.waitstatus_to_exitcode(status)}")
        elif took > 2:
            slow.append(f"{what}: {took:.1f} s")
    # What a child may do with what needs no engine is its own matter.
    slow = [text for text in slow if not text.startswith(("plan", "nothing"))]
    for step in range(1, 4):
        go(model, opt, step)
    assert opt.steps == 4
    opt.snapshot(wait=True)
    opt.close()
    assert not slow, slow
    return ""


@row("loader workers beside an open optimizer")
def workers() -> str:
    from torch.utils.data import DataLoader
    model, opt = made()
    for epoch in range(2):
        for _ in DataLoader(range(32), batch_size=8, num_workers=2):
            go(model, opt, epoch)
    assert opt.steps == 9, opt.steps
    opt.close()
    return ""


@row("gradients of a wrong dtype or device, sparse: named, nothing changed")
def wrong_gradients() -> str:
    import ebb
    model, opt = made()
    before, state = weights_of(model), state_bits(opt)
    p = model.up.weight
    right = p.grad.clone()

    class Fake:
        pass
    for make in (lambda: right.double(), lambda: right.half(), lambda: right.bfloat16(),
                 lambda: right.to_sparse(), lambda: torch.empty_like(right, device="meta")):
        p.grad_dtype = None  # torch refuses most of these by itself otherwise
        try:
            p.grad = make()
        except (RuntimeError, TypeError) as error:
            print("torch itself:", error)
            continue
        with raises(TypeError, ebb.Error, ValueError, RuntimeError, says="up.weight"):
            opt.step()
        check_same(weights_of(model), before, "weights")
        check_same(state_bits(opt), state, "state")
        assert opt.steps == 1
    p.grad = None
    p.grad = right
    opt.step()
    opt.close()

    import ebb.torch
    for dtype in (torch.float16, torch.float64, torch.complex64):
        q = torch.nn.Parameter(torch.zeros(4, 4, dtype=dtype))
        q.grad = torch.ones_like(q)
        with raises(TypeError, ebb.Error, says="that_one"):
            ebb.torch.AdamW([("that_one", q)], swap="other").step()
        assert not Path("other").exists() or not any(Path("other").iterdir())
    q = torch.nn.Parameter(torch.zeros(4, 4, device="meta"))
    with raises(TypeError, ebb.Error, says="that_one"):
        ebb.torch.AdamW([("that_one", q)], swap="other").open()
    return ""


@row("gradients that are views, expanded, transposed, need grad: the right numbers")
def odd_gradients() -> str:
    import ebb.torch

    def run(odd: bool, swap: str) -> dict:
        model = seeded(Net)
        opt = ebb.torch.Muon(hand_groups(model), swap=swap)
        for step in range(3):
            for n, p in model.named_parameters():
                base = torch.sin(torch.arange(float(p.numel())) * (step + 1)).view(p.shape)
                if odd and n == "up.weight":
                    p.grad = base.t().contiguous().t()
                    assert not p.grad.is_contiguous()
                elif n == "up.bias":
                    p.grad = torch.tensor(0.25).expand(p.shape)
                    if not odd:
                        p.grad = p.grad.contiguous()
                elif odd and n == "down.weight":  # inside a buffer, at an odd place
                    buffer = torch.zeros(p.numel() + 7)
                    buffer[3:3 + p.numel()] = base.flatten()
                    p.grad = buffer[3:3 + p.numel()].view(p.shape)
                elif odd:
                    p.grad = base.requires_grad_()
                else:
                    p.grad = base
            opt.step()
            opt.zero_grad()
        opt.close()
        return weights_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(run(True, "a"), run(False, "b"), "weights")
    return ""


@row("parameters moved (p.data = ...): the same values go on, bit for bit")
def moved() -> str:
    def run(move: bool, swap: str) -> dict:
        model, opt = made(swap)
        keep = []
        for step in range(1, 5):
            if move:
                for p in model.parameters():
                    keep.append(p.data)
                    p.data = p.data.clone()
                    keep[-1].fill_(float("nan"))  # nobody may read or write the old place
            go(model, opt, step)
        if move:
            assert all(bool(t.isnan().all()) for t in keep), "the old place was written to"
        opt.close()
        return weights_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(run(True, "a"), run(False, "b"), "weights")
    return ""


@row("parameters moved with new values (p.data = other): taken, not lost")
def moved_and_changed() -> str:
    model, opt = made()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.down.weight.data = torch.full_like(model.down.weight, 0.5)
        model.zero_grad()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        opt.step()
    left = float((model.down.weight - 0.5).abs().max())
    told = any("parameter" in str(w.message) for w in heard)
    opt.close()
    assert left < 0.2, f"the write was lost (off by {left}), told: {told}"
    return f"told: {told}"


@row("p.data moved to a bad place: refused by name")
def moved_badly() -> str:
    import ebb
    model, opt = made()
    p = model.up.weight
    good = p.data
    for bad in (good.t().contiguous().t(), torch.zeros(3, 3), good.bfloat16()):
        try:
            p.data = bad
            p.grad = None if bad.dtype is not torch.float32 else torch.zeros_like(p)
        except RuntimeError as error:
            print("torch itself:", error)
            continue
        with raises(ebb.Error, ValueError, TypeError, says="up.weight"):
            opt.step()
    p.data = good
    go(model, opt, 1)
    opt.close()
    return ""


@row("load_state_dict(assign=True) of the model: no crash, no old memory is used")
def assigned() -> str:
    import ebb
    model, opt = made()
    old = dict(model.named_parameters())
    model.load_state_dict({n: p.detach().clone() for n, p in old.items()}, assign=True)
    new = dict(model.named_parameters())
    assert any(new[n] is not old[n] for n in old)
    before = weights_of(model)
    for p in old.values():
        p.grad = None
    model(*net_batch(1)).backward()
    said = "no word"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            opt.step()
        except ebb.Error as error:
            said = str(error)
    said = "; ".join([said, *[str(w.message) for w in heard]])
    check_same(weights_of(model), before, "parameters that the optimizer does not know")
    opt.close()
    return said


@row("weights edited between steps: taken, one warning, whichever way it was written")
def edited() -> str:
    import ebb.torch

    def run(edit, swap: str, **options) -> tuple[float, int]:
        """How far from the edit the weight is after a step of nothing; warnings."""
        model, opt = made(swap, **options)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("default")
            for _ in range(2):
                w = model.down.weight
                edit(model, w)
                opt.zero_grad()
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
                for g in opt.param_groups:
                    g["lr"] = 0.0
                opt.step()
        away = float((model.down.weight.detach() - 0.5).abs().max())
        master = opt.state_of("down.weight", "master")
        assert same_bits(master, model.down.weight.detach()), "the master is another"
        opt.close()
        return away, sum(issubclass(w.category, RuntimeWarning) for w in heard)

    def fill(model, w):
        with torch.no_grad():
            w.fill_(0.5)

    def load(model, w):
        state = {n: p.clone() for n, p in model.state_dict().items()}
        state["down.weight"].fill_(0.5)
        model.load_state_dict(state)

    def data(model, w):
        w.data.fill_(0.5)

    def detached(model, w):
        w.detach().fill_(0.5)

    def told(model, w):
        w.data.fill_(0.5)
        opts[-1].take_parameters()
    opts = []
    figures = []
    for name, edit in (("no_grad", fill), ("load_state_dict", load), ("detach", detached)):
        away, warned = run(edit, name)
        assert away == 0, f"{name}: the write was lost, off by {away}"
        assert warned == 1, f"{name}: {warned} warnings"
    away, warned = run(data, "data", check_parameters=True)
    assert away == 0, f".data with check_parameters: off by {away}"
    away, _ = run(data, "unchecked")
    figures.append(f".data unchecked: off by {away:.2g}")
    real = ebb.torch.Muon

    class Spy(real):
        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            opts.append(self)
    ebb.torch.Muon = Spy
    away, _ = run(told, "told")
    ebb.torch.Muon = real
    assert away == 0, f"take_parameters(): off by {away}"

    # A run without edits: no warning, although its weights are written every step.
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model, opt = made("quiet")
        for step in range(3):
            go(model, opt, step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            model.state_dict()
    heard = [str(w.message) for w in heard if issubclass(w.category, RuntimeWarning)]
    assert not heard, heard
    opt.close()
    return "; ".join(figures)


@row("autograd knows that a step wrote the weights")
def versions() -> str:
    model, opt = made()
    x = torch.randn(4, 24, requires_grad=True)
    y = model.up(x).sum()  # saves the weight for backward
    opt.step()
    with raises(RuntimeError, says="inplace"):
        y.backward()
    opt.close()
    return ""


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


def hand_groups_without_lr(model):
    muon, adamw = split(model)
    return [dict(params=muon, algorithm="muon"), dict(params=adamw, algorithm="adamw")]


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
    assert 0 <= took <= 1 + 3 * one, (took, one)  # a busy machine's steps differ
    return f"after {took:.2f} s, a step takes {one:.2f} s"


@row("a disk that fills up while state_dict() writes: an error, no signal")
def full_disk() -> str:
    import ebb
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
        with raises(OSError, ebb.Error) as caught:
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


# --- worlds -------------------------------------------------------------------------------------


def plain_world(rank: int, swap: str, **options):
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(hand_groups(model), swap=swap, **options)
    model(*net_batch(0)).backward()
    opt.step()
    return model, opt


@row("a plain world of 2: state_dict on one rank alone: StateError at once, training goes on")
def one_rank_alone() -> str:
    return ranks(2, _one_rank_alone)[0]


def _one_rank_alone(rank: int) -> str:
    import ebb
    model, opt = plain_world(rank, "swap", peer_timeout=timedelta(seconds=20))
    said = ""
    if rank == 0:
        with raises(ebb.StateError, says="consolidate_state_dict", within=1) as caught:
            opt.state_dict()
        said = str(caught[0])
    for step in range(1, 3):
        go(model, opt, step)
    opt.consolidate_state_dict()
    if rank == 0:
        state = opt.state_dict()["state"]
        assert len(state) == 4
        assert state[0]["momentum_buffer"].shape == model.up.weight.shape
        assert bool(state[0]["momentum_buffer"].any()) and bool(state[2]["exp_avg"].any())
        assert bool(state[1]["momentum_buffer"].any()) and float(state[3]["step"]) == 3.0
    else:
        with raises(ebb.StateError, within=1):
            opt.state_dict()
    go(model, opt, 3)
    if rank == 0:
        with raises(ebb.StateError, within=1):  # the one of before is old
            opt.state_dict()
    go(model, opt, 4)
    assert opt.steps == 5
    opt.close()
    return said


def _raises_before_step(rank: int, leaves: str) -> tuple[str, float]:
    import ebb
    model, opt = plain_world(rank, f"swap-{leaves}", peer_timeout=timedelta(seconds=3))
    go(model, opt, 1)
    dist.barrier()
    began = time.monotonic()
    if rank == 1:
        if leaves == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if leaves == "closes":
            opt.close()
        time.sleep(8)
        os._exit(0)
    model(*net_batch(2)).backward()
    try:
        opt.step()
    except ebb.PeerError as error:
        took = time.monotonic() - began
        text = f"{error}"
        # The optimizer is over, and says so at once; closing is local and quick.
        again = time.monotonic()
        try:
            opt.step()
            raise AssertionError("a step after the world was over")
        except ebb.Error:
            pass
        opt.close()
        assert time.monotonic() - again < 2, "closing takes long"
        return text, took
    raise AssertionError("no PeerError")


@row("a rank that dies, closes or stays away: PeerError on the others, by name")
def peer_gone() -> str:
    figures = []
    for leaves, limit in (("dies", 1.5), ("closes", 1.5), ("stays", 5.0)):
        text, took = ranks(2, _raises_before_step, leaves, dies=(1,))[0]
        assert took <= limit, f"{leaves}: {took:.1f} s"
        assert "1" in text, f"{leaves}: does not name the rank: {text}"
        figures.append(f"{leaves} {took:.2f} s")
    return ", ".join(figures)


def _one_bad_rank(rank: int, what: str) -> str:
    """What one rank alone does wrong must reach the others, soon, and as what it is."""
    import ebb
    import ebb.torch
    limit = timedelta(seconds=6)
    began = time.monotonic()
    try:
        if what == "open":
            model = seeded(Net)
            bad = rank == 1
            opt = ebb.torch.Muon(hand_groups(model), peer_timeout=limit,
                                 swap="no/such/folder" if bad else f"swap-{what}")
            opt.open()
        elif what == "weights":
            model = seeded(Net, seed=rank)
            opt = ebb.torch.Muon(hand_groups(model), peer_timeout=limit, swap=f"swap-{what}")
            opt.open()
        elif what == "names":
            model = seeded(Net)
            groups = hand_groups(model)
            if rank == 1:
                groups[1]["params"] = groups[1]["params"][:1]
            opt = ebb.torch.Muon(groups, peer_timeout=limit, swap=f"swap-{what}")
            opt.open()
        elif what == "lr":
            model = seeded(Net)
            opt = ebb.torch.Muon(hand_groups(model), peer_timeout=limit, swap=f"swap-{what}")
            if rank == 1:
                opt.param_groups[0]["lr"] = 0.5
            for step in range(2):
                go(model, opt, step)
            weights = [torch.zeros_like(p) for p in model.parameters()]
            for mine, p in zip(weights, model.parameters()):
                mine.copy_(p.detach())
                dist.broadcast(mine, 0)
                assert torch.equal(mine, p.detach()), "ranks trained apart, without a word"
            opt.close()
            return "the same weights"
        elif what == "grads":
            model, opt = plain_world(rank, f"swap-{what}", peer_timeout=limit)
            model(*net_batch(1)).backward()
            if rank == 1:
                model.up.weight.grad = None
                model.up.weight.grad_dtype = None
                model.up.weight.grad = torch.zeros_like(model.up.weight).double()
            opt.step()
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        took = time.monotonic() - began
        return f"{type(error).__name__} after {took:.1f} s: {error}"
    raise AssertionError(f"{what}: rank {rank}: nothing raised")


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


if __name__ == "__main__":
    run_rows()
