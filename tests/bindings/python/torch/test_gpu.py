"""Parameters on a real GPU, where torch sees one: steps that it computes, with the plugin, and
steps that the host computes for it. Nothing is done with the GPU before a row has forked what uses
it."""
import os
import warnings
from datetime import timedelta

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # is_available() leaves CUDA alone

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from fsdp_runs import compare, formula_run, Odd
from plain_runs import fp32_pair, torch_pair
from worlds import (apart, check_same, fill, free_port, GPT, gpt_batch, hand_groups, local,
                    places_of, raises, row, run_rows, same_bits, seeded, Skip, weights_of, worst)

THERE = dict(device="cuda", device_budget="all")
MIB = 1 << 20


def need_gpu() -> None:
    if not torch.cuda.is_available():
        raise Skip("torch sees no GPU")


def check_runs(one: dict, other: dict, what: str) -> None:
    for key in ("weights", "states"):
        check_same(one[key], other[key], f"{what}: {key}")


@row("a GPU's parameters, the host computes: the host's bits", limit=120)
def staged() -> None:
    need_gpu()
    for dtype in (torch.float32, torch.bfloat16):
        for number, more in enumerate(({}, dict(budget="least", tile="4KiB"))):
            options = dict(dtype=dtype, grads_none=True, **more)
            here = apart(lambda: formula_run(Odd, None, f"here-{dtype}-{number}", 0, 3, **options))
            there = apart(lambda: formula_run(Odd, None, f"there-{dtype}-{number}", 0, 3,
                                              device="cuda", **options))
            check_runs(there, here, f"{dtype} {more}")


@row("a GPU computes: one set of bits for all budgets, and wherever parameters lie", limit=120)
def one_set_of_bits() -> None:
    need_gpu()
    for dtype in (torch.float32, torch.bfloat16):
        def run(name: str, **options) -> dict:
            return apart(lambda: formula_run(Odd, None, f"{name}-{dtype}", 0, 3, dtype=dtype,
                                             grads_none=True, **options))
        whole = run("whole", **THERE)
        check_runs(run("least", **THERE, budget="least", tile="4KiB"), whole, "the least budget")
        check_runs(run("some", device="cuda", device_budget="128MiB"), whole, "128 MiB of a device")
        check_runs(run("host", device_budget="all"), whole, "parameters of the host")


def flat_there(model) -> None:
    torch.cuda.set_device(0)
    torch.cuda.init()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for child in model.children():
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


@row("two processes on one GPU, FSDP2: the bits of one process", limit=120)
def two_ranks() -> str:
    need_gpu()
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3, **THERE))
    return "; ".join([compare(2, Odd, flat_there, "shard", whole=whole, **THERE),
                      compare(2, Odd, flat_there, "owner", whole=whole, placement="owner",
                              **THERE)])


def learn(make_optimizers, steps: int = 30) -> list[float]:
    torch.use_deterministic_algorithms(True)
    model = seeded(GPT).cuda()
    optimizers = make_optimizers(model)
    losses = []
    for step in range(steps):
        x, y = (part.cuda() for part in gpt_batch(step))
        loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in optimizers:
            one.step()
            one.zero_grad()
        losses.append(loss.item())
    return losses


@row("a GPT on a GPU beside torch.optim's Muon and AdamW", limit=120)
def near_torch() -> str:
    need_gpu()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    said = []
    for pair, most, muon in ((fp32_pair, 2e-5, dict(precision="fp32")), (torch_pair, 2e-3, {})):
        theirs = apart(learn, pair)
        for budget in ("all", None):
            def ours(model):
                import ebb.torch
                return [ebb.torch.Muon(hand_groups(model, **muon), swap=f"{budget}-{most}",
                                       device_budget=budget)]
            away = worst(apart(learn, ours), theirs)
            said.append(f"{away:.1e}")
            assert away <= most, (pair.__name__, budget, away)
        assert theirs[-1] < 0.9 * theirs[0], theirs
    return " ".join(said)


def behind_a_stream(swap: str, cycles: int, budget: str | None) -> dict:
    """Gradients are written by a stream that is busy; weights are read on it right behind a
    step."""
    import ebb.torch
    places = places_of(Odd, None)
    model = Odd().cuda()
    fill(model, places)
    given = {name: torch.rand(p.shape, device="cuda", generator=torch.Generator("cuda"))
             for name, p in model.named_parameters()}
    seen = {}
    torch.cuda.synchronize()
    with (ebb.torch.Muon(hand_groups(model, precision="fp32"), swap=swap,
                         device_budget=budget) as opt, torch.cuda.stream(torch.cuda.Stream())):
        opt.open()
        for step in range(4):
            for name, p in model.named_parameters():
                p.grad = torch.full_like(p, 1e9)
            torch.cuda._sleep(cycles)
            for name, p in model.named_parameters():
                p.grad.copy_(given[name]).sub_(0.1 * step)
            opt.step()
            seen.update({f"{step} {name}": p.detach() * 2 for name, p in model.named_parameters()})
        opt.snapshot(wait=True)
    return {name: tensor.cpu() for name, tensor in seen.items()}


@row("a step comes behind the trainer's stream, and what follows behind the step", limit=90)
def streams() -> None:
    need_gpu()
    for budget in ("all", None):
        quiet = apart(behind_a_stream, f"quiet-{budget}", 0, budget)
        check_same(apart(behind_a_stream, f"busy-{budget}", 100_000_000, budget), quiet,
                   f"device_budget={budget}")


def room(budget: str) -> str:
    import ebb.torch
    weight = torch.nn.Parameter(torch.randn(4096, 4096, device="cuda"))
    torch.cuda.synchronize()

    def opened(swap: str):
        opt = ebb.torch.Muon([("weight", weight)], swap=swap, device_budget=budget)
        opt.open()
        return opt
    opened("first").close()  # modules and handles of CUDA, which stay
    before = torch.cuda.mem_get_info()[0]
    opt = opened("second")
    weight.grad = torch.randn_like(weight)
    opt.step()
    planned, torchs = opt.plan().device, weight.numel() * 4
    held = before - torch.cuda.mem_get_info()[0]
    opt.close()
    left = before - torch.cuda.mem_get_info()[0]
    assert held <= planned + torchs + 64 * MIB, (held, planned)
    assert left <= torchs + 64 * MIB, (left, planned)
    return f"planned {planned / MIB:.0f} MiB, held {(held - torchs) / MIB:.0f}"


@row("a GPU's memory: what plan() says, all given back")
def memory() -> str:
    need_gpu()
    return apart(room, "all")


def full(_: int) -> str:
    import ebb
    import ebb.torch
    weight = torch.nn.Parameter(torch.randn(8192, 8192, device="cuda"))
    weight.grad = torch.randn_like(weight)
    opt = ebb.torch.Muon([("weight", weight)], swap="swap", device_budget="all")
    opt.plan()
    hog = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
           for _ in range(torch.cuda.mem_get_info()[0] // (64 * MIB) - 4)]
    with raises(ebb.NoMemory, within=10) as caught:
        opt.open()
    assert not os.path.exists("swap") or not [
        one for one in os.listdir("swap") if one.startswith("store-")]
    hog.clear()
    torch.cuda.empty_cache()
    before = weight.detach().clone()
    opt.step()
    opt.close()
    assert not bool((weight == before).all())
    return str(caught[0])


@row("no room on a GPU: one sentence, and open() again when there is", limit=90)
def no_room() -> str:
    need_gpu()
    return apart(full, 0)


# --- FSDP2 over NCCL, a world of one -------------------------------------------------------------


def sharded(offload: bool):
    mesh = init_device_mesh("cuda", (1,))
    more = dict(offload_policy=CPUOffloadPolicy()) if offload else {}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = seeded(lambda: GPT(tied=False))
    if not offload:
        model = model.cuda()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, **more)
    fully_shard(model, mesh=mesh, mp_policy=policy, **more)
    return model


def train(model, opt, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        loss = model(*(part.cuda() for part in gpt_batch(step)))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return losses


def saved_and_loaded(offload: bool, budget: str | None) -> str:
    import ebb.torch
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{free_port()}", rank=0,
                            world_size=1, timeout=timedelta(seconds=60))

    def made(swap: str):
        model = sharded(offload)
        return model, ebb.torch.Muon(hand_groups(model, precision="fp32"), swap=swap,
                                     device_budget=budget)
    model, opt = made("first")
    losses = train(model, opt, 0, 4)
    before = torch.cuda.memory_allocated()
    state = get_optimizer_state_dict(model, opt)
    kept = {f"{n} {k}": v for n, of in state["state"].items() for k, v in of.items()
            if isinstance(v, DTensor)}
    assert kept and all(local(v).device.type == "cpu" for v in kept.values())
    assert torch.cuda.memory_allocated() == before
    dcp.save({"model": get_model_state_dict(model), "optim": state}, checkpoint_id="saved")
    go_on = train(model, opt, 4, 8)
    opt.close()
    again, other = made("second")
    into = {"model": get_model_state_dict(again),
            "optim": get_optimizer_state_dict(again, other)}
    dcp.load(into, checkpoint_id="saved")
    set_model_state_dict(again, into["model"])
    set_optimizer_state_dict(again, other, into["optim"])
    got = get_optimizer_state_dict(again, other)["state"]
    for name, want in kept.items():
        of, key = name.split(" ")
        assert same_bits(local(got[of][key]), local(want)), name
    assert train(again, other, 4, 8) == go_on
    check_same(weights_of(again), weights_of(model), "weights")
    other.close()
    assert go_on[-1] < losses[0]
    return f"{losses[0]:.3f} to {go_on[-1]:.3f}"


@row("FSDP2 over NCCL: DCP saves and loads a state that stays in host memory", limit=120)
def fsdp() -> str:
    need_gpu()
    return apart(saved_and_loaded, False, "all", limit=100)


@row("FSDP2 over NCCL, the host computes", limit=120)
def fsdp_host() -> str:
    need_gpu()
    return apart(saved_and_loaded, False, None, limit=100)


@row("FSDP2 with CPUOffloadPolicy: the host's parameters, a GPU computes", limit=120)
def fsdp_offload() -> str:
    need_gpu()
    return apart(saved_and_loaded, True, "all", limit=100)


def scaled(_: int) -> str:
    import ebb.torch
    model = seeded(GPT).cuda()
    opt = ebb.torch.Muon(hand_groups(model), swap="swap", device_budget="all")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=4)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(30):
            with torch.autocast("cuda", torch.float16):
                loss = model(*(part.cuda() for part in gpt_batch(step)))
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            losses.append(loss.item())
    taken = opt.steps
    opt.close()
    assert losses[-1] < 0.9 * losses[0] and 20 <= taken <= 30, (losses, taken)
    return f"{taken} of 30 steps taken, {losses[0]:.2f} to {losses[-1]:.2f}"


@row("torch.amp.GradScaler in fp16", limit=90)
def grad_scaler() -> str:
    need_gpu()
    return apart(scaled, 0)


if __name__ == "__main__":
    run_rows()
