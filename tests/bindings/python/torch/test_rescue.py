"""ebb.torch where the disk fails in the middle of a step."""
import copy
import resource
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import ebb
import ebb.torch
import torch

from worlds import check_same, row, run_rows, seeded, weights_of

SIZES = dict(budget="least", tile="64KiB", chunk="64KiB", slots=2)


def raised(kind: type[Exception], does: Callable[[], object]) -> ebb.Error:
    try:
        does()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def model_of() -> torch.nn.Module:
    return seeded(lambda: torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]))


def optimizer_of(model: torch.nn.Module, swap: str, **options):
    return ebb.torch.AdamW(model.named_parameters(), lr=0.01, swap=swap, **SIZES, **options)


def backward(model: torch.nn.Module, step: int) -> None:
    model.zero_grad()
    torch.manual_seed(100 + step)
    model(torch.randn(8, 256)).square().sum().backward()


@contextmanager
def no_room():
    """Files cannot grow beyond a few KiB: writes of tiles fail, as on a disk that is ill."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def train(model, opt, first: int, last: int) -> None:
    for step in range(first, last):
        backward(model, step)
        opt.step()


def undisturbed(steps: int):
    model = model_of()
    with optimizer_of(model, "undisturbed", resume="discard") as opt:
        train(model, opt, 0, steps)
        opt.snapshot(wait=True)
    return weights_of(model)


def stopped(model, opt, step: int) -> None:
    """A step that the disk stops."""
    backward(model, step)
    with no_room():
        error = raised(ebb.Error, opt.step)
    assert "EFBIG" in str(error) or "too large" in str(error), error
    said = raised(ebb.StateError, opt.step)
    assert "continue_step()" in said.hint and "abandon_step()" in said.hint, said.hint


def begun(swap: str, **options):
    """Two steps, and a snapshot of them."""
    model = model_of()
    opt = optimizer_of(model, swap, **options)
    train(model, opt, 0, 2)
    opt.snapshot(wait=True)
    return model, opt


def ends_as_undisturbed(model, opt, first: int, last: int, what: str = "weights") -> None:
    train(model, opt, first, last)
    opt.snapshot(wait=True)
    opt.close()
    check_same(weights_of(model), undisturbed(last), what)


@row("a step that the disk stopped goes on with the bits of an undisturbed one")
def goes_on() -> str:
    model, opt = begun("swap")
    train(model, opt, 2, 3)
    stopped(model, opt, 3)
    opt.continue_step()
    assert opt.steps == opt.last.step == 4, (opt.steps, opt.last)
    ends_as_undisturbed(model, opt, 4, 6)
    return "6 steps"


@row("gradients that were cleared between are missed")
def cleared() -> str:
    model, opt = begun("swap")
    stopped(model, opt, 2)
    for param in model.parameters():
        param.grad.zero_()
    raised(ebb.StateError, opt.continue_step)
    opt.abandon_step()
    assert opt.steps == 2
    ends_as_undisturbed(model, opt, 2, 4)
    return "refused, then back and on"


@row("abandon_step() goes back to the snapshot, parameters too")
def goes_back() -> str:
    model, opt = begun("swap")
    before = weights_of(model)
    train(model, opt, 2, 3)
    stopped(model, opt, 3)
    opt.abandon_step()
    assert opt.steps == 2
    check_same(weights_of(model), before, "weights")
    ends_as_undisturbed(model, opt, 2, 5)
    return "5 steps"


@row("abandon_step() behind a loaded state counts as the snapshot did, and says what was lost")
def counts() -> str:
    model = model_of()
    opt = optimizer_of(model, "swap")
    train(model, opt, 0, 3)
    saved = copy.deepcopy(opt.state_dict())
    train(model, opt, 3, 5)
    opt.snapshot(wait=True)
    opt.load_state_dict(saved)
    assert opt.steps == 3
    stopped(model, opt, 3)
    opt.abandon_step()
    assert opt.steps == 5 and opt.state_dict()["ebb"]["step"] == 5, opt.steps
    train(model, opt, 5, 6)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opt.close()
    assert any("1 steps since the last snapshot" in str(one.message) for one in said), said
    return "5 steps, and one that is lost"


@row("parameters that were written behind a stopped step are missed")
def edited() -> str:
    for masters in ("engine", "parameters"):
        model, opt = begun(masters, masters=masters)
        stopped(model, opt, 2)
        with torch.no_grad():
            model[0].bias.add_(1)
        assert "parameters" in str(raised(ebb.StateError, opt.continue_step))
        opt.abandon_step()
        ends_as_undisturbed(model, opt, 2, 4, masters)
    return "refused, then back and on"


@row("save_to() takes the state of a stopped step to another disk")
def moves() -> str:
    model, opt = begun("swap")
    stopped(model, opt, 2)
    opt.save_to("other")
    opt.continue_step()
    train(model, opt, 3, 4)
    opt.snapshot(wait=True)
    assert Path("other").resolve() in opt.store.parents, opt.store
    opt.state_dict()
    opt.close()
    again = model_of()
    opt = optimizer_of(again, "other", resume="store")
    opt.open()
    ends_as_undisturbed(again, opt, 4, 6)
    return "6 steps over two directories"


@row("state of parameters that the model has not is dropped where that is said")
def dropped() -> str:
    model = model_of()
    with optimizer_of(model, "swap") as opt:
        train(model, opt, 0, 2)
        opt.snapshot(wait=True)
    fewer = torch.nn.Sequential(*list(model)[:-1])
    error = raised(ebb.Error, optimizer_of(fewer, "swap", resume="store").open)
    assert "drop_unknown=True" in error.hint, error.hint
    with optimizer_of(fewer, "swap", resume="store", drop_unknown=True) as opt:
        opt.open()
        assert opt.steps == 2
    return "one layer less"


if __name__ == "__main__":
    run_rows()
