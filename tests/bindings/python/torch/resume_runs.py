"""What the rows of test_resume*.py share."""
import torch

from worlds import (check_same, exact_groups, GPT, gpt_batch, Net, net_batch, raises, rate, seeded,
                    split, weights_of)


def make_opt(model, swap: str, **options):
    import ebb.torch
    return ebb.torch.Muon(exact_groups(model), swap=swap, **options)


def losses_of(model, optimizers, first: int, last: int, batch=gpt_batch) -> list[float]:
    losses = []
    for step in range(first, last):
        loss = model(*batch(step))
        loss.backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
        losses.append(loss.item())
    return losses


def train(model, opt, first: int, last: int, batch=gpt_batch) -> list[float]:
    return losses_of(model, [opt], first, last, batch)


def whole_run(steps: int, swap: str, **options) -> tuple[list[float], dict]:
    model = seeded(GPT)
    opt = make_opt(model, swap, **options)
    losses = train(model, opt, 0, steps)
    opt.close()
    return losses, weights_of(model)


def killed_run(swap: str, at: int, beyond: int, **options) -> tuple[list[float], dict]:
    """Snapshots at step `at`, makes a few more, and is gone without a word."""
    model = seeded(GPT)
    opt = make_opt(model, swap, **options)
    losses = train(model, opt, 0, at)
    kept = weights_of(model)
    generation = opt.snapshot(wait=True)
    assert isinstance(generation, int) and generation > 0, generation
    train(model, opt, at, at + beyond)
    return losses, kept  # the process ends here, the engine open


def resumed_run(swap: str, at: int, steps: int, **options) -> tuple[list[float], dict, dict]:
    model = seeded(GPT, seed=5)  # other weights: the store's must come
    opt = make_opt(model, swap, resume="store", **options)
    opt.open()
    assert opt.opened and opt.steps == at, f"opened {opt.opened} at step {opt.steps}, not {at}"
    assert str(at) in opt.origin, opt.origin
    begun = weights_of(model)
    losses = train(model, opt, at, steps)
    opt.close()
    return losses, weights_of(model), begun


def refused_without_resume() -> str:
    import ebb
    model = seeded(GPT, seed=5)
    start = weights_of(model)
    opt = make_opt(model, "swap")
    with raises(ebb.Error, says=("7", "resume"), within=5) as caught:
        opt.open()
    check_same(weights_of(model), start, "weights after the refusal")
    model(*gpt_batch(0)).backward()
    with raises(ebb.Error, says="7", within=5):
        opt.step()
    check_same(weights_of(model), start, "weights after the refused step")
    return str(caught[0])


def discarding(swap: str, leave: bool) -> None:
    model = seeded(GPT, seed=5)
    start = weights_of(model)
    opt = make_opt(model, swap, resume="discard")
    opt.open()
    assert opt.steps == 0, opt.steps
    check_same(weights_of(model), start, "weights")
    mine = train(model, opt, 0, 3)
    other = seeded(GPT, seed=5)
    fresh = make_opt(other, swap + "-fresh")
    assert train(other, fresh, 0, 3) == mine, "the discarded store has a say"
    check_same(weights_of(model), weights_of(other), "weights")
    fresh.close()
    if leave:
        opt.snapshot(wait=True)


def steps_found(swap: str) -> int:
    model = seeded(GPT, seed=6)
    opt = make_opt(model, swap, resume="store")
    opt.open()
    steps = opt.steps
    opt.close()
    return steps


def saved(opt, path: str) -> None:
    torch.save(opt.state_dict(), path)


def saving_run(swap: str, at: int, steps: int) -> tuple[list[float], dict, dict]:
    """Saves at step `at` and goes on."""
    model = seeded(GPT)
    opt = make_opt(model, swap)
    losses = train(model, opt, 0, at)
    saved(opt, "optimizer.pt")
    torch.save(model.state_dict(), "model.pt")
    losses = train(model, opt, at, steps)
    last = opt.state_dict()
    answer = losses, weights_of(model), {n: {k: v.clone() for k, v in s.items()}
                                         for n, s in last["state"].items()}
    opt.close()
    return answer


def loading_run(swap: str, at: int, steps: int, opened_first: bool,
                **options) -> tuple[list[float], dict, dict]:
    model = seeded(GPT, seed=3)
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    opt = make_opt(model, swap, **options)
    if opened_first:
        opt.open()
    opt.load_state_dict(state_dict=torch.load("optimizer.pt", weights_only=True))
    losses = train(model, opt, at, steps)
    assert opt.steps == steps, f"steps {opt.steps} after loading one of {at} and going to {steps}"
    last = opt.state_dict()
    answer = losses, weights_of(model), {n: {k: v.clone() for k, v in s.items()}
                                         for n, s in last["state"].items()}
    opt.close()
    return answer


def check_states(mine: dict, other: dict) -> None:
    assert mine.keys() == other.keys()
    for n in mine:
        check_same(mine[n], other[n], f"state of {n}")


def _torch_goes_on() -> list[float]:
    import sys
    model = seeded(GPT, seed=3)
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    muon, adamw = split(model)
    pair = [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]
    file = torch.load("optimizer.pt", weights_only=True)
    groups = file["param_groups"]
    assert len(groups) == 2 and groups[0]["param_names"] == [n for n, _ in muon]
    for one, group in zip(pair, groups):
        into = one.state_dict()
        into["state"] = {i: file["state"][p] for i, p in enumerate(group["params"])}
        one.load_state_dict(into)
    assert "ebb" not in sys.modules
    return losses_of(model, pair, 5, 9)


def ddp_saves(rank: int) -> int:
    """torch's helpers under DDP, where all ranks call state_dict(); goes on from what DCP saved."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.nn.parallel import DistributedDataParallel

    def make(swap: str, seed: int):
        model = DistributedDataParallel(seeded(Net, seed))
        return model, make_opt(model.module, swap)

    def steps(model, opt, first: int, last: int) -> None:
        for step in range(first, last):
            model(*net_batch(2 * step + rank)).backward()
            opt.step()
            opt.zero_grad()
    model, opt = make("a", 0)
    steps(model, opt, 0, 3)
    opt.consolidate_state_dict(to=None)
    weights, states = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id="dcp")
    del states
    steps(model, opt, 3, 5)
    other, twin = make("b", 1)
    twin.open()
    twin.consolidate_state_dict(to=None)
    weights, states = get_state_dict(other, twin)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id="dcp")
    set_state_dict(other, twin, model_state_dict=weights, optim_state_dict=states)
    steps(other, twin, 3, 5)
    check_same(weights_of(other.module), weights_of(model.module), "weights")
    steps_there = twin.steps
    opt.close()
    twin.close()
    return steps_there
