"""More rows of ebb.swap: what a Paged does as torch does it, and what it refuses."""
import copy
import os
import signal
import threading
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

import ebb
import ebb.swap
import ebb.torch
from worlds import check_same, raises, ranks, row, run_rows

AdamW = torch.optim.AdamW


class Three(nn.Module):
    """A vector, a matrix, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(5))
        self.b = nn.Parameter(torch.ones(6, 2))
        self.c = nn.Parameter(torch.tensor(1.0))


def paged(kind, params, swap: str, budget: str = "8MiB", **settings):
    return ebb.swap.Paged(kind, params, swap=swap, budget=budget, **settings)


def hand(model: nn.Module, step: int, late: str = "") -> None:
    """Gradients; `late` has none before step 4."""
    draw = torch.Generator().manual_seed(step)
    for name, param in model.named_parameters():
        drawn = torch.randn(param.shape, generator=draw)
        param.grad = None if name == late and step < 4 else drawn


def steps(model: nn.Module, optimizer, first: int, end: int, late: str = "") -> None:
    for step in range(first, end):
        hand(model, step, late)
        optimizer.step()


def check_alike(model: nn.Module, plain: nn.Module, what: str) -> None:
    check_same(dict(model.named_parameters()), dict(plain.named_parameters()), what)


# --- bits -----------------------------------------------------------------------------------------

# Settings under which a kernel walks memory, whatever the strides are.
FUSED = {"AdamW": {}, "Adam": {}, "Adagrad": {}, "SGD": dict(momentum=0.9)}


def strided() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(3)
    conv = torch.randn(16, 8, 3, 3, generator=draw).contiguous(memory_format=torch.channels_last)
    return {"transposed": nn.Parameter(torch.randn(300, 200, generator=draw).t()),
            "channels_last": nn.Parameter(conv),
            "columns": nn.Parameter(torch.randn(30, 20, generator=draw)[:, :7]),
            "rows": nn.Parameter(torch.randn(30, 20, generator=draw))}


@row("parameters that are not row-major, fused: torch's bits, and strides of its state dict")
def strides() -> None:
    for label, settings in FUSED.items():
        found = []
        for make in (lambda p: getattr(torch.optim, label)(p, lr=0.1, fused=True, **settings),
                     lambda p: paged(getattr(torch.optim, label), p, label, lr=0.1, fused=True,
                                     **settings)):
            params = strided()
            if label == "Adagrad":
                del params["columns"]  # torch's own state of it is row-major
            optimizer = make(list(params.items()))
            draw = torch.Generator().manual_seed(5)
            for _ in range(4):
                for param in params.values():
                    drawn = torch.randn(param.shape, generator=draw)
                    param.grad = torch.empty_like(param).copy_(drawn)
                optimizer.step()
            found.append((params, optimizer.state_dict()["state"]))
        (plain, theirs), (mine, ours) = found
        check_same(mine, plain, label)
        for number, state in theirs.items():
            for name, tensor in state.items():
                other = ours[number][name]
                assert not tensor.dim() or other.stride() == tensor.stride(), (label, number, name)


@row("gradients of other strides than their parameters', in half precision: torch's bits")
def gradients() -> None:
    found = []
    for make in (torch.optim.SGD, lambda p, **k: paged(torch.optim.SGD, p, "halves", **k)):
        params = {name: nn.Parameter(p.detach().half()) for name, p in strided().items()}
        optimizer = make(list(params.items()), lr=0.01, momentum=0.9, nesterov=True)
        draw = torch.Generator().manual_seed(5)
        for _ in range(6):
            for param in params.values():
                param.grad = torch.randn(param.shape, generator=draw).half()
            optimizer.step()
        found.append(params)
    check_same(found[1], found[0], "SGD of halves")


@row("a scheduler before open(): what the class looks at when it is made is as it was then")
def made_with() -> None:
    class Bound(torch.optim.SGD):
        """Remembers its rate, as AdaBound does."""

        def __init__(self, params, lr: float) -> None:
            super().__init__(params, lr=lr)
            self.first = [group["lr"] for group in self.param_groups]

        def step(self, closure=None) -> None:
            for group, first in zip(self.param_groups, self.first):
                for param in group["params"]:
                    if param.grad is not None:
                        param.data.sub_(param.grad * group["lr"] / first)
    plain, model = Three(), Three()
    for one, made in ((plain, Bound(plain.parameters(), lr=0.5)),
                      (model, paged(Bound, model.named_parameters(), "bound", lr=0.5))):
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.1 / (1 + step))
        for step in range(3):
            hand(one, step)
            made.step()
            schedule.step()
    check_alike(model, plain, "Bound")


# --- resume ---------------------------------------------------------------------------------------

ORDERS = {
    "as it was": lambda m: [[m.a, m.b, m.c]], "reversed": lambda m: [[m.c, m.b, m.a]],
    "two groups": lambda m: [[m.b], [m.c, m.a]], "three groups": lambda m: [[m.c], [m.a], [m.b]],
}  # fmt: skip


def grouped(model: Three, order: str) -> list[dict]:
    names = {param: name for name, param in model.named_parameters()}
    return [{"params": [(names[p], p) for p in some]} for some in ORDERS[order](model)]


@row("resumed in another order and other groups: counts go by name, on ebb.torch and torch too")
def orders() -> str:
    for late in ("a", "c"):
        plain, swap = Three(), f"orders-{late}"
        whole = AdamW(plain.parameters(), lr=1e-2)
        for first, order in enumerate([*ORDERS, *reversed(ORDERS)]):
            model = Three()
            one = paged(AdamW, grouped(model, order), swap, lr=1e-2)
            one.open()
            assert one.steps == 2 * first, (one.steps, first)
            for made, its in ((one, model), (whole, plain)):
                steps(its, made, 2 * first, 2 * first + 2, late)
            check_alike(model, plain, f"{late} {order}")
            assert one.snapshot(wait=True)
            one.close()
        counts = {name: float(whole.state[p]["step"]) for name, p in plain.named_parameters()}
        assert counts[late] == 12 and len(set(counts.values())) == 2, counts
        read = ebb.open(swap)
        assert {name: float(read[name, "step"].torch()) for name in counts} == counts
        model = Three()
        ours = ebb.torch.AdamW(model.named_parameters(), lr=1e-2, swap=swap, resume="store")
        ours.open()
        check_alike(model, plain, "ebb.torch")
        for name, param in model.named_parameters():
            for state in ("step", "exp_avg", "exp_avg_sq"):
                theirs = whole.state[dict(plain.named_parameters())[name]][state]
                assert torch.equal(ours.state[param][state], theirs), (name, state)
        ours.close()
    return f"{2 * len(ORDERS)} lives"


@row("a folder of another class or model, or of groups that counted apart: refused by name")
def others() -> None:
    one = paged(AdamW, Three().named_parameters(), "others", lr=1e-2)
    steps(Three(), one, 0, 1)
    one.snapshot(wait=True)
    one.close()
    for kind, settings, says in ((torch.optim.NAdam, {}, "mu_product"),
                                 (AdamW, dict(amsgrad=True), "max_exp_avg_sq"),
                                 (torch.optim.SGD, dict(lr=0.1), "exp_avg")):
        with raises(ebb.Error, says=(says, "name an empty directory", kind.__name__)):
            paged(kind, Three().named_parameters(), "others", **settings).open()
    with raises(ebb.Error, says=("more", "name an empty directory")):
        paged(AdamW, [*Three().named_parameters(), ("more", nn.Parameter(torch.ones(2)))],
              "others").open()

    class Counts(torch.optim.SGD):
        """Keeps a number in its group."""

        def step(self, closure=None) -> None:
            super().step()
            self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
    model = Three()
    one = paged(Counts, grouped(model, "two groups"), "counts", lr=0.1)
    steps(model, one, 0, 6, late="b")
    one.snapshot(wait=True)
    one.close()
    with raises(ebb.LayoutError, says=("{'k': 2}", "{'k': 6}", "groups of their own")):
        paged(Counts, grouped(Three(), "reversed"), "counts", lr=0.1).open()
    again = paged(Counts, grouped(Three(), "three groups"), "counts", lr=0.1)
    again.open()
    assert [group["k"] for group in again.param_groups] == [6, 6, 2]


@row("snapshot() again, before the first step, behind edits and a load: what was then comes back")
def snapshots() -> None:
    def back() -> tuple[float, float, int]:
        model = Three()
        one = paged(AdamW, model.named_parameters(), "snapshots", lr=1e-2)
        one.open()
        state = one.state_dict()["state"].get(0)
        one.close()
        return float(model.c), float(state["exp_avg"][0]) if state else 0.0, one.steps
    model = Three()
    one = paged(AdamW, model.named_parameters(), "snapshots", lr=1e-2)
    assert one.snapshot(wait=True) and one.snapshot(wait=True)
    with torch.no_grad():
        model.c.fill_(7.0)
    assert one.snapshot(wait=True)
    one.close()
    assert back() == (7.0, 0.0, 0)
    one = paged(AdamW, model.named_parameters(), "snapshots", lr=1e-2)
    steps(model, one, 0, 3)
    for _ in range(3):
        assert one.snapshot(wait=True)
    assert one.stats()["step"] == 3  # nothing was changed
    given = copy.deepcopy(one.state_dict())
    for state in given["state"].values():
        state["exp_avg"].fill_(5.0)
    one.load_state_dict(given)
    with torch.no_grad():
        model.c.fill_(9.0)
    assert one.snapshot() in (True, False) and one.snapshot(wait=True)
    one.close()
    assert back() == (9.0, 5.0, 3), back()


@row("13000 scalars: a snapshot has all their numbers")
def scalars() -> None:
    params = [(f"p{i}", nn.Parameter(torch.tensor(float(i)))) for i in range(13000)]
    one = paged(AdamW, params, "scalars", budget="64MiB", lr=0.1)
    for (_, param), drawn in zip(params, torch.randn(13000)):
        param.grad = drawn.clone()
    one.step()
    assert one.snapshot(wait=True)
    again = [(name, nn.Parameter(torch.tensor(0.0))) for name, _ in params]
    one.close()
    two = paged(AdamW, again, "scalars", budget="64MiB", lr=0.1)
    two.open()
    for (_, mine), (_, other) in zip(params, again):
        assert float(mine) == float(other)
    kept = [{k: float(v) for k, v in of.kept.items()} for of in one._params]
    assert kept == [{k: float(v) for k, v in of.kept.items()} for of in two._params]


# --- state dicts, as torch's ----------------------------------------------------------------------


@row("a state dict without states, state.clear(), an entry deleted: all begin anew, as torch's")
def resets() -> None:
    def clear(one) -> None:
        one.state.clear()

    def delete(one) -> None:
        del one.state[one.param_groups[0]["params"][0]]

    def load(one) -> None:
        one.load_state_dict(AdamW(Three().parameters(), lr=1e-2).state_dict())

    def partial(one) -> None:
        given = copy.deepcopy(one.state_dict())
        del given["state"][1]
        one.load_state_dict(given)
    for reset in (clear, delete, load, partial):
        plain, model = Three(), Three()
        for its, made in ((plain, AdamW(plain.parameters(), lr=1e-2)),
                          (model, paged(AdamW, model.named_parameters(), reset.__name__, lr=1e-2))):
            steps(its, made, 0, 5)
            reset(made)
            steps(its, made, 5, 8)
        check_alike(model, plain, reset.__name__)


@row("state dict hooks are called, a rate that is a tensor is copied, a bad dict changes nothing")
def dicts() -> None:
    model = Three()
    one = paged(AdamW, model.named_parameters(), "dicts", lr=1e-2)
    steps(model, one, 0, 2)
    called = []
    one.register_state_dict_pre_hook(lambda o: called.append("before"))
    one.register_state_dict_post_hook(lambda o, made: {**made, "mine": 1})
    one.register_load_state_dict_pre_hook(lambda o, given: called.append(given.pop("mine")))
    one.register_load_state_dict_post_hook(lambda o: called.append("behind"))
    given = one.state_dict()
    one.load_state_dict(given)
    assert called == ["before", 1, "behind"] and given["mine"] == 1, called
    bad = copy.deepcopy(given)
    for state in bad["state"].values():
        state["exp_avg"].fill_(9.0)
    bad["state"][2]["exp_avg"] = torch.ones(3)
    with raises(ebb.LayoutError, says=("state dict does not fit: c", "exp_avg (3,)", "AdamW")):
        one.load_state_dict(bad)
    assert float(one.state_dict()["state"][0]["exp_avg"].max()) < 9.0
    rate, other = torch.tensor(0.1), Three()
    two = paged(AdamW, other.named_parameters(), "rate", lr=rate)
    plain = Three()
    whole = AdamW(plain.parameters(), lr=torch.tensor(0.1))
    steps(other, two, 0, 3)
    steps(plain, whole, 0, 3)
    check_alike(other, plain, "a rate that is a tensor")
    two.load_state_dict(whole.state_dict())
    whole.param_groups[0]["lr"].fill_(5.0)
    assert float(two.param_groups[0]["lr"]) == float(torch.tensor(0.1))


@row("opt.state is torch's; DCP's helpers read it, and make no step; hooks for all steps run once")
def state() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    plain, model = Three(), Three()
    whole = AdamW(plain.parameters(), lr=1e-2)
    groups = [{"params": [(name, param)]} for name, param in model.named_parameters()]
    one = paged(AdamW, groups, "state", lr=1e-2)
    ran = []
    hook = register_optimizer_step_post_hook(lambda *_: ran.append(1))
    steps(model, one, 0, 3, late="c")
    hook.remove()
    assert len(ran) == 3, ran
    steps(plain, whole, 0, 3, late="c")
    assert model.c not in one.state and plain.c not in whole.state
    for mine, theirs in ((model.a, plain.a), (model.b, plain.b)):
        assert set(one.state[mine]) == set(whole.state[theirs])
        assert all(torch.equal(one.state[mine][k], v) for k, v in whole.state[theirs].items())
    model.zero_grad()
    read = get_optimizer_state_dict(model, one)["state"]
    assert float(read["a"]["step"]) == 3 and one.steps == 3
    assert torch.equal(read["b"]["exp_avg"], whole.state[plain.b]["exp_avg"])


# --- what is refused ------------------------------------------------------------------------------


class Counted(torch.optim.Optimizer):
    """Counts on itself, or in its group's list."""

    def __init__(self, params, where: str = "self") -> None:
        super().__init__(params, dict(lr=0.1, counts=[0]))
        self.where, self.t = where, 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            if self.where == "self":
                self.t += 1
            else:
                group["counts"] = [group["counts"][0] + 1]
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad, alpha=group["lr"] / (self.t or group["counts"][0]))


@row("a class that counts elsewhere, sparse state, names twice, no elements, no memory: by name")
def refused() -> None:
    with raises(ebb.Unsupported, says=("Counted", "self.state[p]")):
        paged(Counted, Three().named_parameters(), "no")
    with raises(ebb.Unsupported, says=("Counted", "number of its group")):
        paged(Counted, Three().named_parameters(), "no", where="group")
    for kind, settings, fails in ((torch.optim.SGD, {}, False), (torch.optim.Adagrad, {}, False),
                                  (torch.optim.SGD, dict(momentum=0.9), True)):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        before = table.weight.detach().clone()
        one = paged(kind, table.named_parameters(), f"{kind.__name__}{fails}", lr=0.1, **settings)
        table(torch.tensor([1, 2])).square().sum().backward()
        if fails:
            with raises(ebb.Unsupported, says=("momentum_buffer", "sparse=False")):
                one.step()
        else:
            one.step()
        assert torch.equal(table.weight, before) == fails
    twice = [("w", nn.Parameter(torch.ones(2))), ("w", nn.Parameter(torch.ones(2)))]
    with raises(ValueError, says="two parameters are named w"):
        paged(AdamW, [{"params": twice[:1]}, {"params": twice[1:]}], "no")
    from torch.testing._internal.two_tensor import TwoTensor
    two = nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
    for param, says in ((torch.ones(0, 3), "no elements"), (two, "TwoTensor"),
                        (torch.ones(3, device="meta"), ("meta", "to_empty"))):
        with raises(ebb.Unsupported, says=("w", *((says,) if isinstance(says, str) else says))):
            paged(AdamW, [("w", nn.Parameter(param))], "no").open()
    assert not Path("no").exists()
    for swap, kind in ((None, TypeError), ("", ValueError), (3, TypeError)):
        with raises(kind, says=(f"swap={swap!r}", "name a directory")):
            paged(AdamW, Three().named_parameters(), swap)


@row("closed, copied, groups that were edited behind open(): refused by name")
def closed() -> None:
    model = Three()
    one = paged(AdamW, model.named_parameters(), "closed", lr=1e-2)
    with raises(TypeError, says="state_dict()"):
        copy.deepcopy(one)
    steps(model, one, 0, 1)
    one.param_groups[0]["params"].pop()
    for call in (one.step, one.state_dict, one.snapshot):
        with raises(ebb.StateError, says=("fixed while", "requires_grad_(False)")):
            call()
    one.param_groups[0]["params"].append(model.c)
    one.step()
    one.close()
    for call in (one.open, one.step, one.snapshot, one.state_dict):
        with raises(ebb.StateError, says=("closed", "make a new one")):
            call()


def mixed(rank: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    fully_shard(model, ignored_params={model[1].weight})
    with raises(ebb.Unsupported, says=("1.weight", "get_rank()")):
        paged(AdamW, model.named_parameters(), "mixed", lr=0.1).open()
    one = paged(AdamW, nn.Linear(4, 4).named_parameters(), "busy", lr=0.1)
    if rank == 0:
        one.open()
    torch.distributed.barrier()
    if rank == 1:
        with raises(ebb.Busy, says=("DDP", "get_rank()")):
            one.open()


@row("ranks: whole parameters beside DTensors, one directory for all: refused with what to write")
def of_ranks() -> None:
    ranks(2, mixed)


# --- surroundings ---------------------------------------------------------------------------------


@row("a default device, another working directory, generators of a GPU: nothing of it matters")
def surroundings() -> None:
    seeded = []
    real = torch.cuda.manual_seed_all
    torch.cuda.manual_seed_all = seeded.append
    torch.manual_seed(42)
    before = torch.get_rng_state()
    os.makedirs("here")
    os.makedirs("there")
    os.chdir("here")
    model = Three()
    one = paged(AdamW, model.named_parameters(), "swap", lr=1e-2)
    os.chdir("../there")
    one.open()
    assert seeded == [42] and torch.equal(before, torch.get_rng_state())
    torch.cuda.manual_seed_all = real
    steps(model, one, 0, 2)
    given = one.state_dict()
    torch.set_default_device("meta")
    try:
        one.load_state_dict(given)
        one.step()
        assert one.snapshot(wait=True)
        one.close()
        again = paged(torch.optim.SGD, [("w", nn.Parameter(torch.ones(3, device="cpu")))], "meta",
                      lr=0.1, momentum=0.9)
        again.open()
    finally:
        torch.set_default_device("cpu")
    assert [path.name for path in Path.cwd().iterdir()] == ["meta"] and one.steps == 3
    assert (Path("../here/swap")).is_dir()


@row("Ctrl-C at any moment: the next step is made, a lease can be taken again", limit=90)
def interrupted() -> None:
    for number in (both := (signal.SIGINT, signal.SIGTERM)):  # a background job ignores the first
        signal.signal(number, signal.default_int_handler)
    lost = 0  # Python ignores what a handler raises in a finalizer
    for round_ in range(40):
        model = Three()
        one = paged(AdamW, model.named_parameters(), f"ctrl-c-{round_}", lr=1e-2)
        steps(model, one, 0, 1)
        sent = os.getpid(), both[round_ % 2]
        timer = threading.Timer(0.0005 * (1 + round_ % 7), os.kill, sent)
        try:
            timer.start()
            for _ in range(2000):
                one.step()
            lost += 1
        except KeyboardInterrupt:
            pass
        one.step()
        assert one.snapshot(wait=True) and one.state_dict()["state"]
        one.close()
    assert lost < 3, lost


if __name__ == "__main__":
    run_rows()
