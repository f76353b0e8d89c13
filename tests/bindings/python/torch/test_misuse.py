"""What users do that they should not: the error comes at once, says what to do, changes nothing."""
import gc
import json
import os
import signal
import threading
import time
import warnings
import zlib
from collections import defaultdict
from pathlib import Path
import torch

from misuse_runs import call, CALLS, go, made, state_bits
from worlds import check_same, hand_groups, Net, raises, row, run_rows, seeded, wait_for, weights_of


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


@row("what torch reads at each step and an engine does not is refused when it changes")
def changed_behind() -> str:
    import ebb

    def removed(model, opt) -> None:
        group = opt.param_groups[1]
        group["params"], group["param_names"] = group["params"][1:], group["param_names"][1:]

    def of(model, opt):
        return opt.state[model.up.bias]
    changes = {
        "nesterov": lambda model, opt: opt.param_groups[0].update(nesterov=False),
        "scale": lambda model, opt: opt.param_groups[0].update(adjust_lr_fn="match_rms_adamw"),
        "other parameters": removed,
        "groups": lambda model, opt: opt.param_groups.pop(),
        "exp_avg": lambda model, opt: of(model, opt)["exp_avg"].zero_(),
        "step": lambda model, opt: of(model, opt)["step"].fill_(0),
        "opt.state": lambda model, opt: opt.state.clear(),
        "opt.state was": lambda model, opt: opt.state.update({model.up.bias: {}}),
        "opt.state was written": lambda model, opt: setattr(opt, "state", defaultdict(dict)),
    }
    for says, change in changes.items():
        model, opt = made(f"swap-{says}")
        before, state = weights_of(model), state_bits(opt)
        groups = [dict(group) for group in opt.param_groups]
        change(model, opt)
        with raises(ebb.StateError, says=says):
            opt.step()
        check_same(weights_of(model), before, says)
        opt.param_groups[:] = groups  # set back, as the message says
        check_same(state_bits(opt), state, says)
        float(opt.state[model.up.bias]["exp_avg"].sum())  # looking is allowed
        assert opt.state[torch.nn.Parameter(torch.zeros(3))] == {}, "as torch has it"
        opt.step()
        opt.snapshot()
        opt.close()
    return ", ".join(changes)


@row("parameters of another shape, dtype, or in each other's memory: by name, at once")
def other_memory() -> str:
    import ebb
    import ebb.torch
    for masters in ("parameters", "engine"):
        model, opt = made(f"a-{masters}", masters=masters)
        right = model.up.weight.data
        for data in (right.clone().view(24, 40), right.view(24, 40), right.bfloat16()):
            model.up.weight.grad = None
            model.up.weight.data = data
            model.up.weight.grad = torch.ones_like(data)
            with raises(ebb.LayoutError, TypeError, says=("up.weight", "when the engine opened")):
                opt.step()
        model.up.weight.grad = None
        model.up.weight.data = right
        opt.step()
        if masters == "engine":
            model.up.bias.data = model.up.weight.data.view(-1)[:40]
            with raises(ebb.LayoutError, says=("up.bias", "up.weight", "share memory")):
                opt.step()
        opt.snapshot()
        opt.close()
    for dtype, masters in ((torch.float32, "engine"), (torch.bfloat16, "halves")):
        a, b = (torch.nn.Parameter(torch.zeros(8, 8, dtype=dtype)) for _ in range(2))
        b.data = a.data
        with raises(ebb.LayoutError, says=("tok", "head", "share memory")):
            ebb.torch.AdamW([("tok", a), ("head", b)], swap="b", masters=masters).open()
    ws = []
    for kind in ("torch", "ebb"):  # the parameters are the masters: one after the other
        a, b = (torch.nn.Parameter(torch.ones(8, 8)) for _ in range(2))
        b.data = a.data
        opt = (torch.optim.AdamW([a, b], lr=0.1) if kind == "torch"
               else ebb.torch.AdamW([("tok", a), ("head", b)], lr=0.1, swap="c"))
        for _ in range(3):
            a.grad, b.grad = torch.ones(8, 8), -2 * torch.ones(8, 8)
            opt.step()
        ws.append(a.detach())
    assert float((ws[0] - ws[1]).abs().max()) <= 1e-6, ws
    return ""


@row("the swap directory is where it was, wherever the program goes")
def changed_directory() -> str:
    import ebb.torch
    Path("elsewhere").mkdir()
    model, opt = made("swap")
    late = ebb.torch.AdamW(model, swap="late")
    os.chdir("elsewhere")
    opt.step()
    assert len(state_bits(opt)) == 8 and opt.store.is_dir()
    opt.export("out", wait=False)
    with opt.trace("timeline.json"):
        os.chdir("..")
    opt.snapshot(wait=True)
    late.open()
    late.close()
    opt.close()
    assert Path("elsewhere/out").is_dir() and Path("elsewhere/timeline.json").is_file()
    assert Path("late").is_dir()
    for bad in ("", None, 3, [], [""]):
        with raises(TypeError, ValueError, says="swap="):
            ebb.torch.AdamW(model, swap=bad)
    return ""


@row("a skipped step is said once, with whose gradient it was; steps are counted as one")
def skipped_is_said() -> str:
    model, opt = made()
    model.up.bias.grad[3] = float("nan")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        opt.step()
        opt.step()
    said = [str(w.message) for w in heard]
    assert len(said) == 1 and "up.bias" in said[0] and opt.last.skipped, said
    opt.load_state_dict({**opt.state_dict(), "ebb": {"step": 7}})
    go(model, opt, 2)
    assert opt.steps == opt.last.step == 8, (opt.steps, opt.last)
    opt.close()
    return said[0]


@row("int8 momentum, a folder that is open, parameters on meta: what can be done is said")
def words() -> str:
    import ebb
    import ebb.torch
    _, opt = made("a", momentum_dtype=torch.int8)
    for what in (opt.state_dict, lambda: opt.state_of("up.weight", "momentum_buffer"),
                 lambda: opt.state[opt.param_groups[0]["params"][0]]["momentum_buffer"]):
        with raises(ebb.Unsupported, says=("int8", "opt.export()")):
            what()
    assert bool(opt.state_of("up.bias", "exp_avg").any())
    opt.export("out")
    with raises(ebb.Busy, says="close"):
        made("a", seed=1)
    opt.close()
    with torch.device("meta"):
        model = Net()
    opt = ebb.torch.Muon(model, swap="b")
    assert opt.plan().state == ebb.torch.Muon(Net(), swap="b").plan().state
    with raises(ebb.Unsupported, says="meta"):
        opt.open()
    pair = torch.nn.Linear(4, 4)
    torch.save({"model": pair.state_dict(), "optimizer": {
        "state": {i: {"step": torch.tensor(1.0), "exp_avg": torch.ones_like(p),
                      "exp_avg_sq": torch.ones_like(p)} for i, p in enumerate(pair.parameters())},
        "param_groups": [dict(lr=0.1, params=[0]), dict(lr=0.2, params=[1])]}}, "unnamed.pt")
    with raises(ebb.LayoutError, says="load_state_dict"):
        ebb.torch.AdamW(pair, swap="c").load("unnamed.pt")
    return ""


@row("a folder of 0.1.0's Paged: that its counts of steps do not come is said, once")
def pageds_folder() -> str:
    import ebb.torch
    said = []
    for life in range(4):
        opt = ebb.torch.AdamW(seeded(Net), swap="swap", resume="store")
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            opt.open()
        said.append([str(w.message) for w in heard])
        assert not list(opt.blobs), "Paged's blob stays"
        if life % 2 == 0:  # of that version, then of a later one
            counts = {"steps": 1, **({"version": 2} if life else {})}
            opt.blobs["ebb.swap.Paged"] = zlib.compress(json.dumps(counts).encode())
        opt.snapshot(wait=True)
        opt.close()
    assert [len(some) for some in said] == [0, 1, 0, 0] and "Paged" in said[1][0], said
    return said[1][0]


if __name__ == "__main__":
    run_rows()
