"""What users do that they should not: the error comes at once, says what to do, changes nothing."""
import gc
import os
import signal
import threading
import time
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


if __name__ == "__main__":
    run_rows()
