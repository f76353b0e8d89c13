"""bf16 parameters that are the upper halves of their masters: what a user sees is what masters
beside the state show."""
import shutil
import warnings
import torch

from fsdp_runs import _load_run, _save_run
from worlds import (apart, bits, check_same, fill, hand_gradients, hand_groups, Net, places_of,
                    raises, ranks, row, run_rows, same_bits, seeded, weights_of)

KINDS = ("engine", "halves")


def net(seed: int = 0, dtype=torch.bfloat16) -> torch.nn.Module:
    return seeded(Net, seed).to(dtype)


def opt_of(model, swap: str, **options):
    import ebb.torch
    return ebb.torch.Muon(hand_groups(model), swap=swap, **options)


def steps(model, opt, first: int, last: int) -> None:
    """With gradients by formula, which no weight has a say in."""
    places = places_of(Net, None)
    for step in range(first, last):
        hand_gradients(model, places, step + 1)
        opt.step()


def states_of(opt) -> dict[str, torch.Tensor]:
    return {f"{n} {k}": v.clone() for n, s in opt.state_dict()["state"].items()
            for k, v in s.items()}


def tie(master: torch.Tensor) -> torch.Tensor:
    """The nearest number that lies between two of bf16: rounded to even by one, away by another."""
    middle = (bits(master) & -65536) | 0x8000
    return middle.view(torch.float32)


def saving_run(masters: str) -> dict:
    """Masters that are all ties, saved at step 2; the states at step 4 of a run that goes on."""
    model = net()
    fill(model, places_of(Net, None))
    opt = opt_of(model, f"save-{masters}", masters=masters)
    steps(model, opt, 0, 2)
    given = opt.state_dict()
    for state in given["state"].values():
        state["master"].copy_(tie(state["master"]))
    opt.load_state_dict(given)
    got = opt.state_dict()
    for n, state in got["state"].items():
        assert same_bits(state["master"], given["state"][n]["master"]), f"{n}: another master"
    torch.save(got, f"{masters}.opt")
    torch.save(model.state_dict(), f"{masters}.model")
    steps(model, opt, 2, 4)
    end = states_of(opt)
    opt.close()
    return end


def loading_run(of: str, into: str, opened: bool, alone: bool = False) -> dict:
    """`alone`: without the model's state dict."""
    model = net(seed=3)
    opt = opt_of(model, f"load-{of}-{into}-{opened}-{alone}", masters=into)
    if opened:
        opt.open()
    if not alone:
        model.load_state_dict(torch.load(f"{of}.model", weights_only=True))
    opt.load_state_dict(torch.load(f"{of}.opt", weights_only=True))
    opt.open()
    for n, p in model.named_parameters():
        master = opt.state_of(n, "master")
        assert bool(((p.detach() - master).abs() <= master.abs() * 2.0 ** -8).all()), n
    steps(model, opt, 2, 4)
    assert opt.steps == 4, opt.steps
    end = states_of(opt)
    opt.close()
    return end


@row("state dicts of halves and of whole masters go into each other: the same bits")
def into_each_other() -> str:
    ends = {masters: apart(saving_run, masters) for masters in KINDS}
    check_same(ends["halves"], ends["engine"], "states at step 4")
    for of in KINDS:
        for into in (*KINDS, "auto"):
            for opened in (False, True):
                for alone in (False, True):
                    check_same(apart(loading_run, of, into, opened, alone), ends["engine"],
                               f"{of} into {into}, opened {opened}, alone {alone}")
    return f"{len(ends['engine'])} tensors, all masters ties"


@row("auto is halves where all parameters are bf16 and nothing needs masters whole")
def auto() -> str:
    def state(swap: str, model=None, **options) -> int:
        model, group = model or net(), options.pop("group", {})
        import ebb.torch
        opt = ebb.torch.Muon(hand_groups(model, **group), swap=swap, **options)
        planned = opt.plan().state
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
        assert all(("master" in s) == (p.dtype is torch.bfloat16)
                   for p, s in opt.state.items()), "keys of states"
        opt.close()
        return planned
    mixed = net()
    mixed.down.bias.data = mixed.down.bias.data.float()
    whole, halves = (state(kind, masters=kind) for kind in KINDS)
    assert halves < whole, (halves, whole)
    assert state("auto") == halves
    assert state("mixed", mixed) == state("mixed-whole", mixed, masters="engine")
    assert state("l2", group=dict(decay="l2")) == whole, "decay that reads masters first"
    assert state("reference", checkpoint="reference") == halves
    return f"{halves} B of {whole}"


@row("edited between steps: whoever looks first has it, one warning")
def edited() -> str:
    def run(look, swap: str) -> None:
        model = net()
        opt = opt_of(model, swap)
        steps(model, opt, 0, 2)
        given.update(opt.state_dict())
        with torch.no_grad():
            model.down.weight.fill_(0.5)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            look(model, opt)
            master = opt.state_of("down.weight", "master")
        assert bool((master == 0.5).all()), f"{swap}: the edit is lost"
        said = [w for w in heard if issubclass(w.category, RuntimeWarning)]
        assert len(said) == 1, [str(w.message) for w in said]
        steps(model, opt, 2, 3)
        opt.snapshot(wait=True)
        opt.close()

    def replaced(model, opt) -> None:
        model.down.weight.data = model.down.weight.data.clone()
        opt.snapshot(wait=True)

    def loaded(model, opt) -> None:
        """What torch's own optimizers know nothing of stays what it is."""
        for state in given["state"].values():
            state.pop("master")
        opt.load_state_dict(given)
    given: dict = {}
    ways = dict(
        state_dict=lambda model, opt: opt.state_dict(),
        snapshot=lambda model, opt: opt.snapshot(wait=True),
        state_of=lambda model, opt: opt.state_of("up.weight", "master"),
        at_once=lambda model, opt: None, replaced=replaced, loaded=loaded)
    for name, look in ways.items():
        run(look, name)
    return ", ".join(ways)


@row("written past torch's counters: the step says so, take_parameters() goes on")
def unseen() -> str:
    import ebb
    model = net()
    opt = opt_of(model, "swap")
    steps(model, opt, 0, 2)
    model.down.weight.data.fill_(0.5)
    with raises(ebb.StateError, says="down.weight") as caught:
        steps(model, opt, 2, 3)
    assert opt.steps == 2
    opt.take_parameters()
    assert bool((opt.state_of("down.weight", "master") == 0.5).all()), "the edit is lost"
    opt.step()
    steps(model, opt, 3, 4)
    assert opt.steps == 4
    opt.close()
    return str(caught[0])


@row("a store of whole masters goes on in halves, and back; a reference to it too")
def stores() -> str:
    def first() -> dict:
        model = net()
        opt = opt_of(model, "swap", masters="engine")
        steps(model, opt, 0, 3)
        end = states_of(opt)
        torch.save(opt.state_dict(), "at-3.opt")
        opt.snapshot(wait=True)
        opt.close()
        return end

    def goes_on(swap: str, masters: str, to: int, reference=None) -> tuple[dict, dict]:
        model = net(seed=4)
        opt = opt_of(model, swap, masters=masters, resume=None if reference else "store",
                     checkpoint="reference" if reference else "tensors")
        if reference:
            opt.load_state_dict(reference)
        opt.open()
        at = opt.steps
        kept = {f"{n} {k}": opt.state_of(n, k).clone() for n in ("up.weight", "down.bias")
                for k in ("master", "momentum_buffer" if n == "up.weight" else "exp_avg")}
        steps(model, opt, at, to)
        opt.snapshot(wait=True)
        end = weights_of(model)
        opt.close()
        return kept, end

    def referring() -> dict:
        model = net()
        opt = opt_of(model, "named", masters="engine", checkpoint="reference")
        steps(model, opt, 0, 3)
        made = opt.state_dict()
        opt.close()
        return made
    end = apart(first)
    shutil.copytree("swap", "other")
    there, _ = apart(goes_on, "swap", "auto", 5)
    index = {name: i for i, name in enumerate(
        n for g in hand_groups(net()) for n, _ in g["params"])}
    for key, value in there.items():
        name, state = key.split(" ")
        assert same_bits(value, end[f"{index[name]} {state}"]), f"{key} on the way into halves"
    back, whole = apart(goes_on, "swap", "engine", 5)
    straight, same = apart(goes_on, "other", "engine", 5)
    check_same(whole, same, "weights at step 5")
    again, _ = apart(goes_on, "other", "engine", 5)
    check_same(back, again, "states at step 5, over halves and straight")
    named, _ = apart(goes_on, "named", "auto", 5, apart(referring))
    check_same(named, straight, "states of a reference")
    return ""


@row("load() of a store of whole masters: masters are its, bit for bit")
def loads() -> str:
    def first() -> dict:
        model = net()
        opt = opt_of(model, "swap", masters="engine")
        steps(model, opt, 0, 3)
        opt.snapshot(wait=True)
        kept = {n: opt.state_of(n, "master").clone() for n, _ in model.named_parameters()}
        opt.close()
        return kept

    def second() -> dict:
        model = net(seed=8)
        opt = opt_of(model, "new")
        opt.load("swap")
        kept = {n: opt.state_of(n, "master").clone() for n, _ in model.named_parameters()}
        for n, p in model.named_parameters():
            away = (p.detach().float() - kept[n]).abs()
            assert bool((away <= kept[n].abs() * 2.0 ** -8).all()), f"{n} is not its master"
        opt.close()
        return kept
    want = apart(first)
    check_same(apart(second), want, "masters")
    return ""


@row("what halves cannot hold is refused by name, and changes nothing")
def refused() -> str:
    model = net()
    opt = opt_of(model, "swap")
    steps(model, opt, 0, 2)
    kept, weights = states_of(opt), weights_of(model)
    given = opt.state_dict()
    given["state"][0]["master"][0, 0] = float("nan")
    with raises(NotImplementedError, says=("up.weight", "finite")) as caught:
        opt.load_state_dict(given)
    steps(model, opt, 2, 3)
    opt.close()
    with raises(NotImplementedError, says="fp32"):
        opt_of(net(dtype=torch.float32), "fp32", masters="halves").open()
    return str(caught[0])


@row("DDP in bf16: consolidated on one rank, loaded on all: the same bits", limit=90)
def ddp() -> str:
    def one(rank: int) -> dict:
        model = net()
        fill(model, places_of(Net, None))
        opt = opt_of(model, "swap")
        steps(model, opt, 0, 2)
        opt.consolidate_state_dict()
        if rank == 0:
            torch.save(opt.state_dict(), "ddp.opt")
            torch.save(model.state_dict(), "ddp.model")
        steps(model, opt, 2, 4)
        opt.consolidate_state_dict()
        end = states_of(opt) if rank == 0 else {}
        opt.close()
        return {"states": end, "weights": weights_of(model)}

    def again(rank: int) -> dict:
        model = net(seed=5)
        model.load_state_dict(torch.load("ddp.model", weights_only=True))
        opt = opt_of(model, "again")
        opt.load_state_dict(torch.load("ddp.opt", weights_only=True))
        steps(model, opt, 2, 4)
        opt.consolidate_state_dict()
        end = states_of(opt) if rank == 0 else {}
        opt.close()
        return {"states": end, "weights": weights_of(model)}
    want, got = ranks(2, one), ranks(2, again)
    check_same(got[0]["states"], want[0]["states"], "states")
    for r in range(2):
        check_same(got[r]["weights"], want[0]["weights"], f"weights of rank {r}")
    return f"{len(want[0]['states'])} tensors"


def dcp_saver(rank: int, masters: str) -> tuple:
    return _save_run(rank, "ebb", 4, 6, dtype=torch.bfloat16, masters=masters)


def dcp_loader(rank: int, masters: str, opened: bool) -> tuple:
    return _load_run(rank, "ebb", 4, 6, opened, dtype=torch.bfloat16, masters=masters)


@row("DCP of 3 ranks on 2, from whole masters into halves and back", limit=150)
def dcp() -> str:
    for of, into in (KINDS, KINDS[::-1]):
        _, saved = ranks(3, dcp_saver, of)[0]
        assert any(key.endswith("master") for key in saved), "no masters"
        for opened in (True, False):
            _, loaded = ranks(2, dcp_loader, into, opened)[0]
            check_same(loaded, saved, f"{of} into {into}, opened {opened}")
        shutil.rmtree("saved")
        for swap in ("swap-save", "swap-loadTrue", "swap-loadFalse", "swap-fresh"):
            shutil.rmtree(swap, ignore_errors=True)
    return f"{len(saved)} tensors"


if __name__ == "__main__":
    run_rows()
