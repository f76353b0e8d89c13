"""ebb.swap: leases of a SwapSpace, and Paged beside the optimizers that it pages: the same bits, in
a budget, on any number of ranks, behind a kill."""
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

import ebb
import ebb.swap
from worlds import (Net, Skip, apart, check_same, fill, flat, hand_gradients, most_memory,
                    places_of, raises, ranks, row, run_rows, whole_weights)

MIB = 1 << 20
STEPS = 5
# torch's own, with what makes them keep all that they can.
TORCHS = {
    "AdamW": dict(lr=1e-2), "AdamW amsgrad": dict(lr=1e-2, amsgrad=True),
    "AdamW fused": dict(lr=1e-2, fused=True), "Adam foreach": dict(lr=1e-2, foreach=True),
    "Adagrad": dict(lr=1e-2, initial_accumulator_value=0.1), "SGD": dict(lr=0.1, momentum=0.9),
    "SGD plain": dict(lr=0.1), "RMSprop": dict(lr=1e-2, momentum=0.9, centered=True), "Adamax": {},
    "NAdam": {}, "RAdam": {}, "Rprop": {}, "Adadelta": {}, "ASGD": {}, "Adafactor": {},
}  # fmt: skip


class Layers(nn.Module):
    """Matrices of several sizes, one of which is larger than a tile, vectors, a scalar; one that
    never has a gradient, and one that has a gradient at every other step."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(7)
        shapes = [(70, 60), (600, 500), (33,), (64, 64), (), (5, 4, 3), (300, 300)]
        for i, shape in enumerate(shapes):
            self.register_parameter(f"w{i}", nn.Parameter(torch.randn(shape, generator=draw)))
        self.idle = nn.Parameter(torch.zeros(10))
        self.late = nn.Parameter(torch.ones(20, 3))

    def hand_gradients(self, step: int) -> None:
        draw = torch.Generator().manual_seed(step)
        for name, param in self.named_parameters():
            absent = name == "idle" or (name == "late" and step % 2 == 0)
            param.grad = None if absent else torch.randn(param.shape, generator=draw)


def train(make, model: Layers, first: int = 0, steps: int = STEPS):
    """Behind `steps` steps, under a schedule of its rate."""
    optimizer = make(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(first, first + steps):
        model.hand_gradients(step)
        optimizer.step()
        schedule.step()
    return optimizer


def check_beside(kind, settings: dict, label: str) -> None:
    """Paged in a budget that holds a part of it, and that holds all."""
    plain = Layers()
    whole = train(lambda m: kind(m.parameters(), **settings), plain)
    for budget in ("16MiB", "64MiB"):
        model = Layers()
        paged = train(lambda m: ebb.swap.Paged(
            kind, m.named_parameters(), swap=f"{label} {budget}".replace(" ", "-"), budget=budget,
            tile="64KiB", **settings), model)
        check_same(dict(model.named_parameters()), dict(plain.named_parameters()), label)
        mine, theirs = paged.state_dict(), whole.state_dict()
        assert mine["state"].keys() == theirs["state"].keys(), label
        for number, state in theirs["state"].items():
            check_state(mine["state"][number], state, f"{label} {number}")
        groups = [{k: v for k, v in g.items() if k != "param_names"} for g in mine["param_groups"]]
        assert groups == theirs["param_groups"], (groups, theirs["param_groups"])
        back = kind(model.parameters(), **settings)  # torch takes what it is given
        back.load_state_dict(mine)
        paged.close()


def check_state(mine, theirs, what: str) -> None:
    assert type(mine) is type(theirs) or isinstance(theirs, torch.Tensor), (what, mine, theirs)
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype, what
    elif isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), (what, mine.keys(), theirs.keys())
        for key in theirs:
            check_state(mine[key], theirs[key], f"{what} {key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs), what
        for one, other in zip(mine, theirs):
            check_state(one, other, what)
    else:
        assert mine == theirs, (what, mine, theirs)


@row("torch's optimizers, paged: the bits, state and groups of the unpaged ones", limit=200)
def torchs() -> str:
    for label, settings in TORCHS.items():
        check_beside(getattr(torch.optim, label.split()[0]), settings, label)
    return f"{len(TORCHS)} of {len({label.split()[0] for label in TORCHS})} classes"


@row("optimizers of two packages, paged: the same", limit=200)
def packages() -> str:
    try:
        import lion_pytorch
        import pytorch_optimizer as many
    except ImportError as why:
        raise Skip(str(why)) from why
    kinds = {"Lion": (lion_pytorch.Lion, dict(lr=1e-3, weight_decay=0.1)),
             "SOAP": (many.SOAP, dict(lr=1e-3, precondition_frequency=2)),
             "Lion2": (many.Lion, dict(lr=1e-3)), "ADOPT": (many.ADOPT, dict(lr=1e-3)),
             "Adan": (many.Adan, dict(lr=1e-3)), "AdEMAMix": (many.AdEMAMix, dict(lr=1e-3)),
             "CAME": (many.CAME, dict(lr=1e-3)), "LaProp": (many.LaProp, dict(lr=1e-3))}
    for label, (kind, settings) in kinds.items():
        check_beside(kind, settings, label)
    return ", ".join(kinds)


@row("a matrix of Muon's, and groups with settings of their own")
def groups() -> None:
    def made(model):
        matrices = [(n, p) for n, p in model.named_parameters() if p.dim() == 2]
        return [{"params": matrices[:1], "lr": 0.05}, {"params": matrices[1:], "weight_decay": 0.0}]
    plain, model = Layers(), Layers()
    train(lambda m: torch.optim.Muon(made(m), lr=0.02, ns_steps=1), plain, steps=2)
    train(lambda m: ebb.swap.Paged(torch.optim.Muon, made(m), swap="muon", budget="8MiB", lr=0.02,
                                   ns_steps=1), model, steps=2)
    check_same(dict(model.named_parameters()), dict(plain.named_parameters()), "Muon")


class Coupled(torch.optim.Optimizer):
    """Divides by the norm of all gradients."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(p.grad.square().sum() for p in params).sqrt()
        for p in params:
            self.state[p].setdefault("seen", torch.zeros_like(p)).add_(p.grad)
            p.sub_(p.grad / norm, alpha=self.param_groups[0]["lr"])


class Odd(torch.optim.SGD):
    """Keeps what is no tensor."""

    def step(self, closure=None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p]["history"] = {1, 2}


@row("LBFGS, SparseAdam, what couples parameters, odd state: refused by name")
def refused() -> None:
    def paged(kind, **settings):
        return ebb.swap.Paged(kind, Net().named_parameters(), swap="no", budget="1GiB", **settings)
    with raises(ebb.Unsupported, says="LBFGS"):
        paged(torch.optim.LBFGS)
    with raises(ebb.Unsupported, says="SparseAdam"):
        paged(torch.optim.SparseAdam)
    with raises(ebb.Unsupported, says=("Coupled", "other parameters")):
        paged(Coupled)
    with raises(ebb.Unsupported, says=("history", "set")):
        paged(Odd, lr=0.1, momentum=0.9).open()
    with raises(ValueError, says="named_parameters"):
        ebb.swap.Paged(torch.optim.SGD, Net().parameters(), swap="no", budget="1GiB")
    with raises(ebb.NoMemory):
        ebb.swap.Paged(torch.optim.AdamW, nn.Linear(1000, 1000).named_parameters(), swap="small",
                       budget="1MiB").open()
    assert not Path("no").exists()


def until_killed(told: Path) -> None:
    model = Layers()
    paged = ebb.swap.Paged(torch.optim.AdamW, model.named_parameters(), swap="killed",
                           budget="16MiB", lr=1e-2)
    paged.open()
    with told.open("a") as out:
        print(paged.steps, file=out, flush=True)
    while paged.steps < 60:
        model.hand_gradients(paged.steps)
        paged.step()
        time.sleep(0.02)
        if paged.steps % 2 == 0:
            paged.snapshot()
    paged.wait_snapshot()
    torch.save(dict(model.state_dict()), "end.part")
    os.rename("end.part", "end")
    paged.close()


@row("killed again and again, it goes on with its state and weights: the same bits", limit=200)
def killed() -> str:
    plain = Layers()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for step in range(60):
        plain.hand_gradients(step)
        optimizer.step()
    told, lives = Path("told"), 0
    while not Path("end").exists():
        lives += 1
        assert lives < 60, told.read_text()
        pid = os.fork()
        if pid == 0:
            until_killed(told)
            os._exit(0)
        until = time.monotonic() + 0.3 + 0.05 * lives
        while time.monotonic() < until and not Path("end").exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    check_same(torch.load("end"), dict(plain.state_dict()), "behind the kills")
    begun = [int(line) for line in told.read_text().split()]
    assert len(set(begun)) > 2, begun
    return f"{lives} lives, begun at steps {begun}"


def of_world(rank: int, swap: str, first: int, steps: int) -> dict[str, torch.Tensor]:
    places = places_of(Net, flat)
    model = Net()
    flat(model)
    fill(model, places)
    paged = ebb.swap.Paged(torch.optim.AdamW, model.named_parameters(), swap=swap, budget="16MiB",
                           lr=1e-2, tile="16KiB")
    paged.open()
    assert paged.steps == first, (paged.steps, first)
    for step in range(first, first + steps):
        hand_gradients(model, places, step)
        paged.step()
    paged.snapshot()
    paged.wait_snapshot()
    paged.close()
    return whole_weights(model)


@row("FSDP2's rows on 2 and 3 ranks: one process' bits; another world goes on", limit=120)
def worlds_of_ranks() -> None:
    def alone(steps: int) -> dict[str, torch.Tensor]:
        places = places_of(Net, None)
        model = Net()
        fill(model, places)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(steps):
            hand_gradients(model, places, step)
            optimizer.step()
        return whole_weights(model)
    want = [apart(alone, 3), apart(alone, 6)]
    for worlds in ((2, 3), (3, 2)):
        for half, world in enumerate(worlds):
            for found in ranks(world, of_world, f"swap{worlds}", 3 * half, 3):
                check_same(found, want[half], f"{world} ranks")


def in_budget() -> str:
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(32)))  # 128 MiB
    paged = ebb.swap.Paged(torch.optim.AdamW, model.named_parameters(), swap="memory",
                           budget="48MiB", lr=1e-3)
    for param in model.parameters():
        param.grad = torch.full_like(param, 1e-3)
    paged.open()
    with most_memory() as most:
        for _ in range(3):
            paged.step()
        paged.snapshot()
        paged.wait_snapshot()
        held = paged.state_dict()
    assert len(held["state"]) == 32
    grown = most[0]
    assert grown < (48 + 64) * MIB, grown // MIB
    return f"{grown / MIB:+.0f} MiB for 256 MiB of state in a budget of 48"


@row("memory: the budget, whatever the state", limit=90)
def memory() -> str:
    return apart(in_budget)


@row("a state dict of the unpaged optimizer goes on here, and the other way round")
def state_dicts() -> None:
    plain = Layers()
    whole = train(lambda m: torch.optim.NAdam(m.parameters()), plain)
    model, again = Layers(), Layers()
    for one in (model, again):
        one.load_state_dict(plain.state_dict())

    def made(m, name: str):
        return ebb.swap.Paged(torch.optim.NAdam, m.named_parameters(), swap=name, budget="16MiB")
    before, behind = made(model, "before"), made(again, "behind")
    before.load_state_dict(whole.state_dict())  # it opens later
    behind.open()
    behind.load_state_dict(whole.state_dict())
    for step in range(STEPS, 2 * STEPS):
        for one, optimizer in ((plain, whole), (model, before), (again, behind)):
            one.hand_gradients(step)
            optimizer.step()
    for one in (model, again):
        check_same(dict(one.named_parameters()), dict(plain.named_parameters()), "NAdam")


@row("tensors of a lease that is over raise; an exception inside changes nothing")
def leases() -> None:
    with ebb.swap.SwapSpace("space", budget="1MiB", tile="64KiB") as space:
        with raises(ebb.StateError, says="open() comes first"):
            space.snapshot(1)
        buffers = [space.register(f"w{i}", shape=(50, 100), states=["master", "exp_avg"])
                   for i in range(100)]
        small = space.register("count", shape=(3,), states={"seen": torch.int64})

        def begin(buffer: ebb.swap.Buffer, state: dict[str, torch.Tensor]) -> None:
            if "master" in state:
                state["master"].fill_(buffer.number)
        assert "created" in space.open(begin)
        for buffer in buffers:
            with space.acquire(buffer) as state:
                assert bool((state["master"] == buffer.number).all())
                assert not bool(state["exp_avg"].any())
                made = state["master"].mul(2)
                row_of_it = state["exp_avg"][3]
                row_of_it.copy_(made[3])
        assert type(made) is torch.Tensor and float(made[0, 0]) == 2 * 99
        for use in (row_of_it.sum, lambda: row_of_it.add_(1), state["master"].numpy,
                    lambda: torch.zeros(100) + row_of_it, lambda: torch.stack([row_of_it])):
            with raises(ebb.StateError, says=("w99", "lease was over")):
                use()
        with raises(KeyError), space.acquire(buffers[0]) as state:
            state["master"].fill_(-1)
            raise KeyError("mine")
        with space.acquire(buffers[0], modify=False) as one:
            assert float(one["master"][0, 0]) == 0.0
        with raises(ebb.Error), space.acquire(buffers[0]):
            space.acquire(buffers[0])
        with space.acquire(small) as state:
            state["seen"].copy_(torch.tensor([1, 2, 3]))
        space.set_blob("place", b"here")
        assert space.snapshot(7) and space.wait_snapshot() > 0
    with raises(ebb.StateError, says="closed"):
        space.flush()
    with ebb.swap.SwapSpace("space", budget="1MiB", tile="64KiB") as space:
        for i in range(100):
            space.register(f"w{i}", shape=(50, 100), states=["master", "exp_avg"])
        small = space.register("count", shape=(3,), states={"seen": torch.int64})
        assert "resumed" in space.open() and space.step == 7
        assert space.blob("place") == b"here" and space.blob("other") is None
        with space.acquire(small, modify=False) as state:
            assert state["seen"].tolist() == [1, 2, 3]
        with space.acquire(space.buffers[5], modify=False) as state:
            assert float(state["exp_avg"][3, 0]) == 10.0
    assert ebb.open(space.directory)["w5", "exp_avg"].torch().shape == (50, 100)


@row("a lease to read: what would write it raises, what did is told")
def read_only() -> None:
    with ebb.swap.SwapSpace("read", budget="4MiB") as space:
        buffer = space.register("w", shape=(10,), states=["m"])
        space.open()
        with space.acquire(buffer) as state:
            state["m"].fill_(1.0)
        with space.acquire(buffer, modify=False) as state:
            m, out = state["m"], torch.zeros(10)
            for writes in (lambda: m.fill_(7.0), lambda: m.__setitem__(0, 7.0),
                           lambda: m[2:4].add_(1), lambda: torch.add(out, 1, out=m),
                           lambda: torch._foreach_add_([m], 1.0), lambda: m.__itruediv__(2.0),
                           lambda: nn.functional.relu(m, inplace=True)):
                with raises(ebb.StateError, says=("w", "modify=False", "writes it")):
                    writes()
            out.copy_(m)
            out += m
            torch.add(m, 1, out=out)
            assert out.tolist() == [2.0] * 10 and m.tolist() == [1.0] * 10
        with raises(ebb.StateError, says=("w", "modify=False, and written")):
            with space.acquire(buffer, modify=False) as state:
                torch.ops.aten.add_.Tensor(state["m"], 1.0)
        with space.acquire(buffer) as state:
            state["m"].fill_(3.0)
        with space.acquire(buffer, modify=False) as state:
            assert state["m"].tolist() == [3.0] * 10


@row("what `initial` raises is what open() raises, and nothing is left")
def initial() -> None:
    def fails(buffer, state) -> None:
        raise KeyError("mine")
    space = ebb.swap.SwapSpace("failed", budget="1MiB")
    space.register("w", shape=(3,), states=["m"])
    with raises(KeyError, says="mine"):
        space.open(fails)
    assert not list(Path("failed").glob("store-*"))


class Logs(torch.optim.SGD):
    """Keeps on itself what no step needs."""

    def step(self, closure=None):
        self.t = getattr(self, "t", 0) + 1
        self.norms = [p.grad.norm() for g in self.param_groups for p in g["params"]
                      if p.grad is not None]
        self.told = lambda: self.t
        return super().step(closure)


@row("a class that keeps a log on itself is paged, with the bits of its own")
def logs() -> None:
    check_beside(Logs, dict(lr=0.1, momentum=0.9), "logs")


if __name__ == "__main__":
    run_rows()
