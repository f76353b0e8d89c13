"""What an optimizer writes and tells beside its steps: checkpoints of other formats, timelines,
what a trainer keeps with a snapshot; and Ctrl-C, that leaves a step on its way."""
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ebb
import ebb.torch
from fsdp_runs import Odd
from worlds import (apart, check_same, fill, flat, hand_gradients, exact_groups, places_of, raises,
                    ranks, row, run_rows, weights_of, whole_weights)


def made(make, parallel, swap="swap", **options):
    places = places_of(make, parallel)
    model = make()
    if parallel is not None:
        parallel(model)
    fill(model, places)
    return model, places, ebb.torch.Muon(exact_groups(model), swap=swap, **options)


def go(model, places, opt, step: int) -> None:
    hand_gradients(model, places, step + 1)
    opt.step()
    opt.zero_grad()


def stored(path: str, wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What torch's DCP reads of weights."""
    into = {f"model.{name}": torch.empty_like(value) for name, value in wanted.items()}
    dcp.load(into, checkpoint_id=path, no_dist=True)
    return {name.removeprefix("model."): value for name, value in into.items()}


def _goes_on_in_torch(kind: str, settings: dict, tolerance: dict) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    draw = torch.Generator().manual_seed(5)
    rows = torch.randn(8, 6, generator=draw)

    def net() -> torch.nn.Module:
        torch.manual_seed(2)
        bias = kind != "Muon"  # torch's takes matrices alone
        return torch.nn.Sequential(torch.nn.Linear(6, 5, bias=bias), torch.nn.ReLU(),
                                   torch.nn.Linear(5, 1, bias=bias))

    def steps(model, opt, count: int) -> None:
        for _ in range(count):
            model(rows).square().mean().backward()
            opt.step()
            opt.zero_grad()

    ours = net()
    opt = getattr(ebb.torch, kind)(ours.named_parameters(), swap=kind, lr=1e-2, **settings)
    steps(ours, opt, 3)
    opt.export(f"{kind}-dcp")
    opt.export(f"{kind}.pt", "torch")
    steps(ours, opt, 2)
    opt.close()
    for path in (f"{kind}-dcp", f"{kind}.pt"):
        model = net()
        theirs = getattr(torch.optim, kind)(model.parameters(), lr=1.0)
        wanted = set(theirs.param_groups[0])
        weights, states = get_state_dict(model, theirs)
        found = {"model": weights, "optimizer": states}
        if path.endswith("dcp"):
            dcp.load(found, checkpoint_id=path, no_dist=True)
        else:
            found = torch.load(path, weights_only=True)
        set_state_dict(model, theirs, model_state_dict=found["model"],
                       optim_state_dict=found["optimizer"])
        for name, value in settings.items():
            assert theirs.param_groups[0][name] == value, (name, theirs.param_groups)
        assert wanted <= theirs.param_groups[0].keys(), theirs.param_groups
        steps(model, theirs, 2)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, ours.get_parameter(name), **tolerance)


@row("export: torch.optim.AdamW goes on from the DCP, and from torch.load")
def adamw_goes_on_in_torch() -> None:
    _goes_on_in_torch("AdamW", {"betas": (0.8, 0.95)}, {"rtol": 1e-5, "atol": 1e-6})


@row("export: torch.optim.Muon goes on from the DCP, and from torch.load")
def muon_goes_on_in_torch() -> None:
    _goes_on_in_torch("Muon", {"momentum": 0.9, "nesterov": False, "weight_decay": 0.2},
                      {"rtol": 1e-3, "atol": 1e-4})


@row("export: torch reads the DCP, whose weights are those of its step")
def exported() -> str:
    model, places, opt = made(Odd, None)
    for step in range(2):
        go(model, places, opt, step)
    opt.export("out")
    wanted = weights_of(model)
    check_same(stored("out", wanted), wanted, "weights")
    opt.export("beside", wait=False)
    go(model, places, opt, 2)
    opt.export("m.safetensors", "safetensors")  # waits for the one before
    check_same(stored("beside", wanted), wanted, "weights, written beside a step")
    assert Path("m.safetensors").is_file()
    for path, format, says in (("out", "dcp", "exists already"), ("x", "docx", "docx")):
        with raises(ebb.Error, says=says):
            opt.export(path, format)
    go(model, places, opt, 3)
    opt.close()
    return ""


@row("export without wait that fails: a warning, and training goes on")
def export_fails() -> str:
    model, places, opt = made(Odd, None)
    go(model, places, opt, 0)
    Path("there").mkdir()
    Path("there/file").touch()
    opt.export("there", wait=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(1, 20):
            time.sleep(0.05)
            go(model, places, opt, step)
            if said:
                break
        opt.close()
    assert any("exists already" in str(one.message) for one in said), [str(s.message) for s in said]
    return f"after {step} steps"


def _export_rank(rank: int, swap, wait: bool):
    model, places, opt = made(Odd, flat, swap)
    for step in range(2):
        go(model, places, opt, step)
    opt.export("out", world=5, wait=wait)
    wanted = whole_weights(model)
    for step in range(2, 6):
        go(model, places, opt, step)
    with opt.trace("line.json"):
        go(model, places, opt, 6)
        go(model, places, opt, 7)
    if not wait:
        opt.export("again")  # waits for the first
    error = ""
    try:
        opt.export("out")
    except ebb.Error as why:
        error = str(why)
    go(model, places, opt, 8)
    dist.barrier()
    opt.close()
    return wanted, error


@row("export on 3 ranks, waited for or not: all of it, errors on all; a timeline each", limit=120)
def exported_by_ranks() -> str:
    for wait in (True, False):
        said = ranks(3, _export_rank, f"swap-{wait}", wait)
        check_same(stored("out", said[0][0]), said[0][0], f"weights, wait {wait}")
        assert len(list(Path("out").glob("*.distcp"))) == 5
        assert all("exists already" in error for _, error in said), said
        for rank in range(3):
            events = json.loads(Path(f"line.rank{rank}.json").read_text())["traceEvents"]
            assert sum(e["ph"] == "X" and e["name"] == "step" for e in events) == 2
        for folder in ("out", "again"):
            os.rename(folder, f"{folder}-{wait}") if os.path.exists(folder) else None
    return ""


def _own_rank(rank: int):
    model, places, opt = made(Odd, flat, ["own-0", "own-1"])
    go(model, places, opt, 0)
    error = ""
    try:
        opt.export("out")
    except ebb.Error as why:
        error = f"{why} {why.hint}"
    go(model, places, opt, 1)
    opt.close()
    return error, os.path.exists("out")


@row("export where each rank has a directory of its own: refused, on all")
def own_directories() -> str:
    said = ranks(2, _own_rank)
    assert all("each rank has its own" in error and not there for error, there in said), said
    return ""


@row("blobs are a mapping, which a resume finds again")
def blobs() -> str:
    model, places, opt = made(Odd, None)
    opt.open()
    opt.blobs.update(rng=b"123", data=b"4")
    del opt.blobs["data"]
    with raises(KeyError):
        del opt.blobs["data"]
    with raises(ValueError, says="no bytes"):
        opt.blobs["none"] = b""
    assert dict(opt.blobs) == {"rng": b"123"} and len(opt.blobs) == 1
    opt.load_state_dict(opt.state_dict())  # which keeps something of its own there
    assert list(opt.blobs) == ["rng"]
    opt.snapshot(wait=True)
    opt.close()
    _, _, again = made(Odd, None, resume="store")
    again.open()
    assert dict(again.blobs) == {"rng": b"123"}
    again.close()
    return ""


def _interrupted(swap: str, at: set[int]) -> tuple[dict, list[float]]:
    model = torch.nn.Linear(2000, 1500, bias=False)
    places = {"weight": torch.arange(model.weight.numel()).view(model.weight.shape)}
    fill(model, places)
    opt = ebb.torch.AdamW(model.named_parameters(), swap=swap, budget="least", tile="64KiB",
                          threads=1)
    opt.open()
    heard = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's ignores it
    for step in range(6):
        hand_gradients(model, places, step + 1)
        sent = time.monotonic() + 0.03
        if step in at:
            threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            opt.step()
            if step in at:
                time.sleep(0.2)
        except KeyboardInterrupt:
            heard.append(time.monotonic() - sent)
        opt.zero_grad()  # gradients that a step reads still
    assert opt.steps == 6 or opt.last.step < 6
    opt.snapshot(wait=True)
    assert opt.steps == 6, opt.steps
    opt.close()
    return weights_of(model), heard


@row("Ctrl-C in a step: heard at once, the step goes on behind, with the same bits", limit=90)
def ctrl_c() -> str:
    wanted, _ = apart(_interrupted, "plain", set())
    weights, heard = apart(_interrupted, "interrupted", {1, 3, 5})
    check_same(weights, wanted, "weights")
    assert heard and max(heard) < 1, heard
    return f"heard {len(heard)} times, after at most {max(heard):.2f} s"


if __name__ == "__main__":
    run_rows()
