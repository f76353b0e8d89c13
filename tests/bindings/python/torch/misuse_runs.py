"""What the rows of test_misuse*.py share."""
import os
import signal
import time
import warnings
from datetime import timedelta
import torch
import torch.distributed as dist

from worlds import check_same, hand_groups, Net, net_batch, raises, seeded, split


def check_either_way(run) -> None:
    """That run(with or without what a row is about, swap) leaves the same weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(run(True, "a"), run(False, "b"), "weights")


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


def hand_groups_without_lr(model):
    muon, adamw = split(model)
    return [dict(params=muon, algorithm="muon"), dict(params=adamw, algorithm="adamw")]


# --- worlds -------------------------------------------------------------------------------------


def plain_world(rank: int, swap: str, **options):
    import ebb.torch
    model = seeded(Net)
    opt = ebb.torch.Muon(hand_groups(model), swap=swap, **options)
    model(*net_batch(0)).backward()
    opt.step()
    return model, opt


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
    opt.consolidate_state_dict(to=None)
    state = opt.state_dict()["state"]
    assert float(state[3]["step"]) == 4.0 and bool(state[0]["momentum_buffer"].any())
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
