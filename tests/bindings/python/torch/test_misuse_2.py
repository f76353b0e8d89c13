"""More rows of test_misuse.py."""
import warnings
import torch

from misuse_runs import check_either_way, go, made
from worlds import (check_same, hand_groups, Net, net_batch, raises, row, run_rows, same_bits,
                    seeded, weights_of)


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
    check_either_way(run)
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
    check_either_way(run)
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


@row("weights edited between steps count, whichever way; where they are no masters one warning")
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
        for masters, wanted in (("engine", 1), ("auto", 0)):
            away, warned = run(edit, f"{name}-{masters}", masters=masters)
            assert away == 0, f"{name}, {masters}: the write was lost, off by {away}"
            assert warned == wanted, f"{name}, {masters}: {warned} warnings"
    away, warned = run(data, "data", masters="engine", check_parameters=True)
    assert away == 0, f".data with check_parameters: off by {away}"
    away, _ = run(data, "unchecked", masters="engine")
    figures.append(f".data unchecked: off by {away:.2g}")
    away, warned = run(data, "masters")
    assert away == 0 and warned == 0, f".data of masters: off by {away}, {warned} warnings"
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


if __name__ == "__main__":
    run_rows()
