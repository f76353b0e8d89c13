"""What the rows of test_fsdp*.py share."""
import time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel

from worlds import (apart, check_same, fill, flat, GPT, gpt_batch, hand_gradients, exact_groups,
                    local, places_of, raises, ranks, rate, same_bits, seeded, split, weights_of)


class Odd(nn.Module):
    """Rows that divide unevenly, fewer rows than ranks, one row, vectors."""
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 10)
        self.b = nn.Linear(10, 3)
        self.c = nn.Linear(7, 1)
        self.d = nn.Linear(48, 82, bias=False)
        self.n = nn.LayerNorm(7)
        self.tok = nn.Embedding(13, 5)


class Two(nn.Module):
    """For tensor parallelism: what one cuts by columns and one by rows, and what neither cuts."""
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 6)
        self.n = nn.LayerNorm(6)


class Uneven(nn.Module):
    """The same where nothing divides."""
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 13)
        self.down = nn.Linear(13, 5)
        self.n = nn.LayerNorm(5)


class Experts(nn.Module):
    shape = (8, 6, 10)

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(self.shape))
        self.up = nn.Linear(10, 14, bias=False)


class OddExperts(Experts):
    shape = (3, 5, 7)


STATES = {"muon": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}


def formula_run(make, parallel, swap: str, first: int, last: int, resume=None, groups=exact_groups,
                dtype=torch.float32, grads_none=False, device="cpu", **options) -> dict:
    """Steps with gradients by formula; places, weights and states of what this rank has."""
    import ebb.torch
    places = places_of(make, parallel)
    model = make().to(device, dtype)
    if parallel is not None:
        parallel(model)
    fill(model, places)
    opt = ebb.torch.Muon(groups(model), swap=swap, resume=resume,
                         peer_timeout=timedelta(seconds=20), **options)
    opt.open()
    assert opt.steps == first, (opt.steps, first)
    for step in range(first, last):
        hand_gradients(model, places, step + 1)
        if grads_none and step == 1:
            next(p for n, p in model.named_parameters() if n.startswith("d.")).grad = None
        for group in opt.param_groups:
            group["lr"] = 0.01 / (step + 1)
        opt.step()
        opt.zero_grad()
    assert opt.steps == last
    took = {"norm": torch.tensor(opt.last.norm)}
    states: dict[str, torch.Tensor] = {}
    for group in opt.param_groups:
        for name, p in zip(group["param_names"], group["params"]):
            names = STATES[group["algorithm"]]
            for state in (*names, "master"):
                got = opt.state_of(name, state)
                if isinstance(p, DTensor):
                    assert isinstance(got, DTensor) and got.placements == p.placements, name
                    assert got.shape == p.shape, name
                assert local(got).shape == local(p).shape, (name, state, local(got).shape)
                assert local(got).dtype is torch.float32
                states[f"{name} {state}"] = local(got).clone()
    opt.snapshot(wait=True)
    answer = {"places": places, "weights": weights_of(model), "states": states, **took}
    opt.close()
    return answer


def check_part(part: dict, whole: dict, rank: int, what: str) -> int:
    """That a rank's elements are those of one process, bit for bit; how many it has."""
    count = 0
    for key in ("weights", "states"):
        assert part[key].keys() == whole[key].keys()
        for name, mine in part[key].items():
            places = part["places"][name.split(" ")[0]]
            want = whole[key][name].flatten()[places.flatten()].view(places.shape)
            count += mine.numel()
            if not same_bits(mine, want):
                away = (mine.double() - want.double()).abs()
                raise AssertionError(f"{what}, rank {rank}: {name} differs by {float(away.max())}"
                                     f" in {int((away > 0).sum())} of {mine.numel()} elements")
    return count


def on_rank(rank: int, *args) -> dict:
    make, parallel, swap, first, last, options = args
    return formula_run(make, parallel, swap, first, last, **options)


def compare(world: int, make, parallel, what: str, steps: int = 3, whole=None, **options) -> str:
    whole = whole or apart(lambda: formula_run(make, None, f"whole-{what}", 0, steps, **options))
    parts = ranks(world, on_rank, make, parallel, f"swap-{what}", 0, steps, options)
    counts = [check_part(part, whole, r, what) for r, part in enumerate(parts)]
    norms = max(abs(float(p["norm"] - whole["norm"])) / float(whole["norm"]) for p in parts)
    assert norms <= 1e-6, f"{what}: the norm differs by {norms}"
    return f"{what} {'+'.join(map(str, counts))}"


def tp_fsdp(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])


def tp_alone(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def columns(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh,
                shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 and p.shape[1] % 2 == 0
                else Shard(0))


def expert_rows(model: nn.Module) -> None:
    """Experts over ep, and each expert group's rows over the rest: as torchtitan does it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "efsdp"))
    _put(model, "w", mesh, (Shard(0), Shard(0)))
    fully_shard(model.up, mesh=mesh["efsdp"])


def expert_boxes(dims: tuple[int, int], model: nn.Module) -> None:
    """Experts over ep, and one more dimension over the rest: of more ranks than experts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "efsdp"))
    _put(model, "w", mesh, tuple(Shard(dim) for dim in dims))
    fully_shard(model.up, mesh=mesh["efsdp"])


def _put(model: nn.Module, name: str, mesh, placements) -> None:
    from torch.distributed.tensor import distribute_tensor
    p = getattr(model, name)
    setattr(model, name, nn.Parameter(distribute_tensor(p.detach(), mesh, placements)))


def expert_groups(model: nn.Module, of_experts: str = "adamw") -> list:
    named = dict(model.named_parameters())
    return [dict(params=[("w", named["w"])], algorithm=of_experts, lr=0.01),
            dict(params=[("up.weight", named["up.weight"])], algorithm="muon", lr=0.01)]


def _stores(folder: str) -> list[str]:
    return [p.name for p in Path(folder).iterdir()] if Path(folder).exists() else []


def _refused(rank: int, what: str) -> str:
    import ebb
    import ebb.torch
    mesh = init_device_mesh("cpu", (2,))
    local_one = torch.zeros(4, 6)
    placement = Partial() if what == "partial" else Replicate()
    odd = nn.Parameter(DTensor.from_local(local_one, mesh, [placement], run_check=False))
    if what == "replicate":
        odd.grad = DTensor.from_local(torch.ones(4, 6), mesh, [Partial()], run_check=False)
    opt = ebb.torch.AdamW([("the_odd_one", odd)], swap=f"swap-{what}", lr=0.5,
                          peer_timeout=timedelta(seconds=10))
    if what == "partial":
        with raises(ebb.Unsupported, ebb.LayoutError, says="the_odd_one") as caught:
            opt.open()
        assert not _stores(f"swap-{what}"), _stores(f"swap-{what}")
        return str(caught[0])
    # A gradient whose sum was not made: its ranks' parts would be trained on.
    with raises(ebb.Error, TypeError, ValueError, says="the_odd_one") as caught:
        opt.step()
    return str(caught[0])


def _foreign_gradient(rank: int) -> str:
    import ebb
    import ebb.torch
    mesh = init_device_mesh("cpu", (2,))
    p = nn.Parameter(DTensor.from_local(torch.zeros(3, 6), mesh, [Shard(0)], run_check=False))
    p.grad = DTensor.from_local(torch.ones(6, 3), mesh, [Shard(1)], run_check=False)
    assert p.grad.shape == p.shape and p.grad.placements != p.placements
    opt = ebb.torch.AdamW([("the_odd_one", p)], swap="swap-f", peer_timeout=timedelta(seconds=10))
    with raises(ebb.Error, TypeError, ValueError, says="the_odd_one") as caught:
        opt.step()
    return str(caught[0])


class Sizes(nn.Module):
    def __init__(self, *rows: int) -> None:
        super().__init__()
        for i, each in enumerate(rows):
            setattr(self, f"m{i}", nn.Linear(48, each, bias=False))


def _seconds_of_state(rank: int, rows: tuple[int, ...]) -> float:
    import ebb.torch
    model = Sizes(*rows)
    places = places_of(lambda: Sizes(*rows), flat)
    flat(model)
    fill(model, places)
    opt = ebb.torch.Muon(model.named_parameters(), swap=f"swap-{len(rows)}", placement="owner",
                         peer_timeout=timedelta(seconds=20))
    hand_gradients(model, places, 1)
    opt.step()
    best = []
    for _ in range(2):
        began = time.monotonic()
        opt.load_state_dict(opt.state_dict())
        best.append(time.monotonic() - began)
    opt.close()
    return min(best)


# --- a model that learns --------------------------------------------------------------------------


def cut_gpt(seed: int = 0, parallel=True, dtype=torch.float32) -> nn.Module:
    model = seeded(lambda: GPT(tied=False), seed).to(dtype)
    if parallel:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def train(model, optimizers, first: int, last: int, clip: float = 1.0) -> list[float]:
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    losses = []
    for step in range(first, last):
        loss = model(*gpt_batch(step, rank, world))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for one in optimizers:
            one.step()
        for one in optimizers:
            one.zero_grad()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(float(total) / world)
    return losses


def ebb_opt(model, swap: str, **options):
    import ebb.torch
    return ebb.torch.Muon(exact_groups(model), swap=swap, peer_timeout=timedelta(seconds=20),
                          **options)


def torch_pair(model) -> list:
    muon, adamw = split(model)
    return [torch.optim.Muon(muon, lr=rate(model), weight_decay=0.1),
            torch.optim.AdamW(adamw, lr=3e-3, weight_decay=0.01)]


def _fsdp_run(rank: int, kind: str, swap: str, first: int, last: int, options: dict):
    model = cut_gpt(seed=0 if first == 0 else 7)
    if kind == "torch":
        optimizers = torch_pair(model)
    else:
        optimizers = [ebb_opt(model, swap, **options)]
        optimizers[0].open()
        assert optimizers[0].steps == first
    losses = train(model, optimizers, first, last)
    if kind != "torch":
        optimizers[0].snapshot(wait=True)
        optimizers[0].close()
    return losses, weights_of(model)


def whole_state(model, opt) -> dict[str, torch.Tensor]:
    """[collective] All states of all parameters, whole, by name."""
    got = get_optimizer_state_dict(model, opt)["state"]
    return {f"{n} {k}": (v.full_tensor() if isinstance(v, DTensor) else v).clone()
            for n, s in got.items() for k, v in s.items()}


def _save_run(rank: int, kind: str, at: int, end: int, dtype=torch.float32, **options) -> tuple:
    model = cut_gpt(dtype=dtype)
    optimizers = torch_pair(model) if kind == "torch" else [ebb_opt(model, "swap-save", **options)]
    if kind == "ebb":
        # As torch's own tools do it, before anything was trained.
        first = get_optimizer_state_dict(model, optimizers[0])
        assert optimizers[0].steps == 0 and len(first["state"]) == len(list(model.parameters()))
    train(model, optimizers, 0, at)
    state = get_optimizer_state_dict(model, optimizers)
    dcp.save({"model": get_model_state_dict(model), "optim": state}, checkpoint_id="saved")
    kept = {f"{n} {k}": (v.full_tensor() if isinstance(v, DTensor) else v).clone()
            for n, s in state["state"].items() for k, v in s.items()}
    losses = train(model, optimizers, at, end)
    if kind == "ebb":
        assert optimizers[0].steps == end
        optimizers[0].close()
    return losses, kept


def _load_run(rank: int, kind: str, at: int, end: int, opened: bool = True, dtype=torch.float32,
              **options) -> tuple:
    model = cut_gpt(seed=3, dtype=dtype)
    optimizers = (torch_pair(model) if kind == "torch"
                  else [ebb_opt(model, f"swap-load{opened}", **options)])
    state = get_optimizer_state_dict(model, optimizers)
    into = {"model": get_model_state_dict(model), "optim": {"state": state["state"]}}
    dcp.load(into, checkpoint_id="saved")
    set_model_state_dict(model, into["model"])
    if kind == "ebb" and not opened:  # into one that nobody has opened, as after a restart
        fresh = ebb_opt(model, "swap-fresh", **options)
        optimizers[0].close()
        optimizers = [fresh]
    set_optimizer_state_dict(model, optimizers, state)
    kept = {}
    for one in optimizers:
        kept.update(whole_state(model, one) if len(optimizers) == 1 else {})
    losses = train(model, optimizers, at, end)
    if kind == "ebb":
        assert optimizers[0].steps == end, optimizers[0].steps
        optimizers[0].close()
    return losses, kept


def _async_run(rank: int) -> None:
    model = cut_gpt()
    opt = ebb_opt(model, "swap")
    train(model, [opt], 0, 3)
    state = get_optimizer_state_dict(model, opt)
    kept = {f"{n} {k}": local(v).clone() for n, s in state["state"].items() for k, v in s.items()}
    train(model, [opt], 3, 5)
    opt.state_dict()
    for n, s in state["state"].items():
        for k, v in s.items():
            assert same_bits(local(v), kept[f"{n} {k}"]), f"{n} {k}: a later call wrote into it"
    opt.close()


def _late_shard(rank: int) -> None:
    """accelerate: the optimizer comes first, then its parameters are replaced by DTensors."""
    model = seeded(lambda: GPT(tied=False))
    opt = ebb_opt(model, "swap")
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    named = dict(model.named_parameters())
    for group in opt.param_groups:
        group["params"] = [named[n] for n in group["param_names"]]
    losses = train(model, [opt], 0, 4)
    other = cut_gpt()
    twin = ebb_opt(other, "swap2")
    assert train(other, [twin], 0, 4) == losses
    check_same(weights_of(model), weights_of(other), "weights")
    opt.close()
    twin.close()


def _smaller_world(rank: int) -> str:
    """Two worlds of two ranks, an optimizer each (as pipeline stages have)."""
    import ebb.torch
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "dp"))
    stage = rank // 2
    model = seeded(lambda: GPT(tied=False), seed=stage)
    fully_shard(model, mesh=mesh["dp"])
    opt = ebb.torch.Muon(exact_groups(model), swap=f"stage{stage}",
                         process_group=mesh["dp"].get_group(), peer_timeout=timedelta(seconds=15))
    losses = []
    for step in range(3):
        loss = model(*gpt_batch(step, rank % 2, 2))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert opt.steps == 3
    # What one stage does alone is no matter of the other's.
    if stage == 0:
        opt.snapshot(wait=True)
    opt.close()
    return ""


def _state_dict_not_called_by_all(rank: int) -> str:
    """DTensors: state_dict() is collective; a rank that does not come is named within the limit."""
    import ebb
    import ebb.torch
    model = cut_gpt()
    opt = ebb.torch.Muon(exact_groups(model), swap="swap", peer_timeout=timedelta(seconds=3))
    train(model, [opt], 0, 1)
    if rank == 0:
        began = time.monotonic()
        with raises(ebb.PeerError, says="1", within=6):
            opt.state_dict()
        return f"{time.monotonic() - began:.1f} s"
    time.sleep(7)
    return ""
