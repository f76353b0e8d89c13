"""Steps that are computed on a device: the plugin whose kernels run on the host. The same steps as
the host's but for the order of sums in Newton-Schulz; the same bits among themselves, whatever the
budget, the number of ranks, and where parameters lie."""
import os

import torch

from fsdp_runs import compare, formula_run, Odd
from stub_gpu import put_parameters_there, use_stub
from worlds import (apart, check_same, flat, GPT, gpt_batch, hand_groups, Net, net_batch, raises,
                    ranks, row, run_rows, seeded, weights_of, worst)


def losses(make, batch, groups, swap: str, steps: int = 6, **options) -> tuple[list[float], dict]:
    import ebb.torch
    model = seeded(make)
    seen = []
    with ebb.torch.Muon(groups(model), swap=swap, **options) as opt:
        for step in range(steps):
            opt.zero_grad()
            loss = model(*batch(step))
            loss.backward()
            opt.step()
            seen.append(float(loss.detach()))
        opt.snapshot(wait=True)
    return seen, weights_of(model)


@row("host parameters, a device computes: the host's losses; AdamW its bits", limit=90)
def near_the_host() -> str:
    use_stub()
    said = []
    for make, batch, most, muon in ((Net, net_batch, 2e-6, dict(precision="fp32")),
                                    (GPT, gpt_batch, 2e-6, dict(precision="fp32")),
                                    (GPT, gpt_batch, 2e-4, {})):
        one, _ = losses(make, batch, lambda m: hand_groups(m, **muon), f"host-{len(said)}")
        two, _ = losses(make, batch, lambda m: hand_groups(m, **muon), f"there-{len(said)}",
                        device_budget="all")
        away = worst(two, one)
        assert away <= most, (make, muon, away)
        said.append(f"{away:.1e}")
    adamw = lambda m: [dict(params=list(m.named_parameters()), algorithm="adamw",  # noqa: E731
                            lr=3e-3)]
    _, one = losses(Net, net_batch, adamw, "adamw-host")
    _, two = losses(Net, net_batch, adamw, "adamw-there", device_budget="100MiB")
    check_same(one, two, "AdamW")
    return " ".join(said)


@row("a device computes: one set of bits for all budgets and numbers of ranks", limit=150)
def one_set_of_bits() -> str:
    use_stub()
    there = dict(device_budget="all")
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3, **there))
    least = apart(lambda: formula_run(Odd, None, "least", 0, 3, budget="least", tile="4KiB",
                                      device_budget="64MiB"))
    for key in ("weights", "states"):
        check_same(least[key], whole[key], f"the least budget: {key}")
    return "; ".join([compare(2, Odd, flat, "2", whole=whole, **there),
                      compare(2, Odd, flat, "owner", whole=whole, placement="owner", **there)])


@row("parameters on the device, behind the trainer's stream: the same bits", limit=90)
def parameters_there() -> None:
    plugin = use_stub()
    for dtype in (torch.float32, torch.bfloat16):
        options = dict(dtype=dtype, grads_none=True, device_budget="all")
        here = apart(lambda: formula_run(Odd, None, f"here-{dtype}", 0, 3, **options))

        def on_device() -> dict:
            put_parameters_there(plugin)
            return formula_run(Odd, None, f"there-{dtype}", 0, 3, **options)
        there = apart(on_device)
        for key in ("weights", "states"):
            check_same(there[key], here[key], f"{dtype}: {key}")
        assert there["norm"] == here["norm"]


@row("halves of the host's parameters, a device computes: the bits of whole masters", limit=60)
def halves() -> None:
    use_stub()
    ends = {kind: apart(lambda kind=kind: formula_run(
        Odd, None, kind, 0, 3, dtype=torch.bfloat16, device_budget="all", masters=kind))
        for kind in ("engine", "halves")}
    for key in ("weights", "states"):
        check_same(ends["halves"][key], ends["engine"][key], key)


@row("plan() says the device's bytes, before and behind opening; resume on the host")
def planned() -> str:
    import ebb.torch
    use_stub()
    model = seeded(Net)
    host = ebb.torch.Muon(hand_groups(model), swap="none").plan()
    assert host.device == 0, host
    opt = ebb.torch.Muon(hand_groups(model), swap="swap", device_budget="all")
    before = opt.plan()
    assert before.device > 0 and before.memory < host.memory, (before, host)
    opt.open()
    assert opt.plan() == before
    model(*net_batch(0)).backward()
    opt.step()
    opt.snapshot(wait=True)
    opt.close()
    kept = weights_of(model)
    with ebb.torch.Muon(hand_groups(model), swap="swap", resume="store") as again:
        again.open()
        check_same(weights_of(model), kept, "resumed on the host")
        again.step()
    with ebb.torch.Muon(hand_groups(model), swap="exact", device_budget=before.device) as exact:
        exact.open()
    return f"{before.device} bytes"


@row("refused by name before anything is there: budgets, no plugin, no device")
def refused() -> None:
    import ebb
    import ebb.torch
    use_stub()
    model = seeded(Net)

    def made(**options):
        return ebb.torch.Muon(hand_groups(model), swap="swap", **options)
    for wrong in (0, "lots", "0GiB", -1, "25%", "least"):
        with raises(ValueError, says="device_budget"):
            made(device_budget=wrong)
    with raises(ebb.NoMemory, says="bytes of the device is too small"):
        made(device_budget="1KiB").open()
    for plugin, kind, says in (("/nowhere/ebb-cuda.so", ebb.IoError, "/nowhere/ebb-cuda.so"),
                               ("libc.so.6", ebb.Unsupported, "./dev build cuda")):
        os.environ["EBB_PLUGIN"] = plugin
        with raises(kind, says=says):
            made(device_budget="all").open()
        with raises(kind, says=says):
            made(device_budget="all").plan()
    assert not os.path.exists("swap"), "something is there"


def _without_a_plugin(rank: int) -> str:
    import ebb
    import ebb.torch
    use_stub()
    if rank == 1:
        os.environ["EBB_PLUGIN"] = "/nowhere/ebb-cuda.so"
    try:
        ebb.torch.Muon(hand_groups(seeded(Net)), swap="swap", device_budget="all").open()
    except ebb.Error as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing raised")


@row("one rank has no plugin: all learn it")
def one_without() -> str:
    use_stub()
    said = ranks(2, _without_a_plugin)
    assert all("/nowhere/ebb-cuda.so" in text for text in said), said
    return said[0]


if __name__ == "__main__":
    run_rows()
