"""Sharded parameters: the same bits as one process, whatever the placement; torch's checkpoints."""
import shutil
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

from worlds import (GPT, Skip, apart, check_same, fill, flat, gpt_batch, hand_gradients,
                    hand_groups, hsdp, local, places_of, raises, ranks, rate, row, run_rows, same_bits, seeded,
                    split, weights_of, worst)


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


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(8, 6, 10))
        self.up = nn.Linear(10, 14, bias=False)


STATES = {"muon": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}


def formula_run(make, parallel, swap: str, first: int, last: int, resume=None, groups=hand_groups,
                dtype=torch.float32, grads_none=False, **options) -> dict:
    """Steps with gradients by formula; places, weights and states of what this rank has."""
    import ebb.torch
    places = places_of(make, parallel)
    model = make().to(dtype)
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
            for state in (*names, "master") if options.get("masters") != "halves" else names:
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


@row("FSDP2 on 2, 3 and 4 ranks: uneven, empty, 1 row, 1-d: bits of one process", limit=120)
def fsdp() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join(compare(world, Odd, flat, f"{world}", whole=whole) for world in (2, 3, 4))


@row("FSDP2, whole matrices at owners, least budget, small tiles: the same bits", limit=120)
def fsdp_ways() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    said = []
    for what, options in (("owner", dict(placement="owner")),
                          ("least", dict(budget="least", tile="4KiB", slots=2)),
                          ("threads", dict(threads=2, chunk="64KiB"))):
        said.append(compare(3, Odd, flat, what, whole=whole, **options))
    return "; ".join(said)


@row("HSDP 2 x 2: bits of one process", limit=90)
def hybrid() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join([compare(4, Odd, hsdp, "shard", whole=whole),
                      compare(4, Odd, hsdp, "owner", whole=whole, placement="owner")])


@row("plain tensors on 2 and 3 ranks (DDP): bits of one process", limit=90)
def plain() -> str:
    def nothing(model):
        pass
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join([compare(2, Odd, nothing, "2", whole=whole),
                      compare(3, Odd, nothing, "3", whole=whole, placement="shard"),
                      compare(2, Odd, nothing, "2least", whole=whole, budget="least",
                              tile="4KiB")])


def tp_fsdp(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])


def tp_alone(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


@row("TP x FSDP on 2 x 2: strided rows, columns, what TP leaves whole", limit=90)
def tensor_parallel() -> str:
    return compare(4, Two, tp_fsdp, "tp x fsdp")


@row("TP alone on 2: DTensors beside plain ones", limit=90)
def tensor_parallel_alone() -> str:
    return compare(2, Two, tp_alone, "tp")


def columns(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh,
                shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 and p.shape[1] % 2 == 0
                else Shard(0))


@row("FSDP2 with Shard(1) beside Shard(0)", limit=90)
def by_columns() -> str:
    return compare(2, Two, columns, "columns")


def expert_rows(model: nn.Module) -> None:
    """Experts over ep, and each expert group's rows over the rest: as torchtitan does it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "efsdp"))
    _put(model, "w", mesh, (Shard(0), Shard(0)))
    fully_shard(model.up, mesh=mesh["efsdp"])


def expert_columns(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "efsdp"))
    _put(model, "w", mesh, (Shard(0), Shard(1)))
    fully_shard(model.up, mesh=mesh["efsdp"])


def _put(model: nn.Module, name: str, mesh, placements) -> None:
    from torch.distributed.tensor import distribute_tensor
    p = getattr(model, name)
    setattr(model, name, nn.Parameter(distribute_tensor(p.detach(), mesh, placements)))


def expert_groups(model: nn.Module) -> list:
    named = dict(model.named_parameters())
    return [dict(params=[("w", named["w"])], algorithm="adamw", lr=0.01),
            dict(params=[("up.weight", named["up.weight"])], algorithm="muon", lr=0.01)]


@row("experts cut over ep, then by rows over efsdp", limit=90)
def experts() -> str:
    return compare(4, Experts, expert_rows, "experts", groups=expert_groups)


@row("experts cut over ep and efsdp by another dimension: refused by name, or right", limit=90)
def experts_columns() -> str:
    try:
        return compare(4, Experts, expert_columns, "experts", groups=expert_groups)
    except AssertionError as error:
        text = str(error)
        last = [line for line in text.splitlines() if line.strip()][-1]
        assert ("Unsupported" in last or "LayoutError" in last) and "w " in last, last
        assert not _stores("swap-experts"), "a store was begun"
        return last


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


@row("Partial: a parameter's, and a gradient's, are refused by name")
def partial() -> str:
    return "; ".join(ranks(2, _refused, what, limit=25, together=False)[0]
                     for what in ("partial", "replicate"))


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


@row("a gradient placed otherwise than its parameter is refused by name")
def foreign_gradient() -> str:
    return ranks(2, _foreign_gradient, limit=25, together=False)[0]


@row("a gradient that is None on all ranks, at one step", limit=90)
def none_gradient() -> str:
    def none(what, **options):
        return compare(3, Odd, flat, what, grads_none=True, **options)
    return none("none")


@row("bf16 parameters and gradients, masters and halves, on 3 ranks", limit=90)
def bf16() -> str:
    return "; ".join(compare(3, Odd, flat, masters, dtype=torch.bfloat16, masters=masters,
                             checkpoint="reference") for masters in ("engine", "halves"))


@row("a store of 3 ranks goes on with 2, 4 and 1: states are the same bits", limit=150)
def other_worlds() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 5))
    ranks(3, on_rank, Odd, flat, "swap3", 0, 3, {})
    said = []
    for world in (2, 4, 1):
        shutil.copytree("swap3", f"swap3-{world}")
        if world == 1:
            parts = [apart(lambda: formula_run(Odd, None, "swap3-1", 3, 5, resume="store"))]
        else:
            parts = ranks(world, on_rank, Odd, flat, f"swap3-{world}", 3, 5, dict(resume="store"))
        for r, part in enumerate(parts):
            check_part(part, whole, r, f"3 -> {world}")
        said.append(f"3 -> {world}")
    shutil.copytree("swap3-2", "again")
    parts = ranks(2, on_rank, Odd, flat, "again", 5, 5, dict(resume="store"))
    for r, part in enumerate(parts):
        check_part(part, whole, r, "2 again")
    return ", ".join(said)


@row("a directory for each rank; on another number of ranks they are all named", limit=90)
def own_directories() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    parts = ranks(2, on_rank, Odd, flat, ["own-0", "own-1"], 0, 2, {})
    parts = ranks(2, on_rank, Odd, flat, ["own-0", "own-1"], 2, 3, dict(resume="store"))
    for r, part in enumerate(parts):
        check_part(part, whole, r, "own directories")
    return ""


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


@row("a small matrix beside a large one: state_dict() and load are as quick", limit=90)
def small_beside_large() -> str:
    alone = max(ranks(4, _seconds_of_state, (400,)))
    beside = max(ranks(4, _seconds_of_state, (400, 1)))
    if beside > 10 * alone + 0.3:
        raise Skip(f"known: portions are as small as one rank's staging: {alone:.2f} s alone,"
                   f" {beside:.2f} s beside a row of 48")
    return f"{alone:.3f} s alone, {beside:.3f} s beside a row of 48"


# --- a model that learns --------------------------------------------------------------------------


def cut_gpt(seed: int = 0, parallel=True) -> nn.Module:
    model = seeded(lambda: GPT(tied=False), seed)
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
    return ebb.torch.Muon(hand_groups(model), swap=swap, peer_timeout=timedelta(seconds=20),
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


@row("FSDP2 on 3 ranks beside torch's; killed and resumed on 3: the same bits", limit=120)
def fsdp_trains() -> str:
    theirs = ranks(3, _fsdp_run, "torch", "", 0, 12, {})[0][0]
    mine = ranks(3, _fsdp_run, "ebb", "a", 0, 12, {})
    away = worst(mine[0][0], theirs)
    assert away <= 2e-4, f"losses differ by {away}"
    first = ranks(3, _fsdp_run, "ebb", "b", 0, 6, {})
    shutil.copytree("b", "c")
    second = ranks(3, _fsdp_run, "ebb", "b", 6, 12, dict(resume="store"))
    assert first[0][0] + second[0][0] == mine[0][0], "losses after the resume"
    for r in range(3):
        check_same(second[r][1], mine[r][1], f"rank {r}")
    other = ranks(2, _fsdp_run, "ebb", "c", 6, 12, dict(resume="store"))
    elsewhere = worst(first[0][0] + other[0][0], mine[0][0])
    assert elsewhere <= 1e-4, f"on 2 ranks losses differ by {elsewhere}"
    return f"torch {away:.1e}; on 3 the same bits; on 2 {elsewhere:.1e}"


def whole_state(model, opt) -> dict[str, torch.Tensor]:
    """[collective] All states of all parameters, whole, by name."""
    got = get_optimizer_state_dict(model, opt)["state"]
    return {f"{n} {k}": (v.full_tensor() if isinstance(v, DTensor) else v).clone()
            for n, s in got.items() for k, v in s.items()}


def _save_run(rank: int, kind: str, at: int, end: int) -> tuple:
    model = cut_gpt()
    optimizers = torch_pair(model) if kind == "torch" else [ebb_opt(model, "swap-save")]
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


def _load_run(rank: int, kind: str, at: int, end: int, opened: bool = True) -> tuple:
    model = cut_gpt(seed=3)
    optimizers = torch_pair(model) if kind == "torch" else [ebb_opt(model, f"swap-load{opened}")]
    state = get_optimizer_state_dict(model, optimizers)
    into = {"model": get_model_state_dict(model), "optim": {"state": state["state"]}}
    dcp.load(into, checkpoint_id="saved")
    set_model_state_dict(model, into["model"])
    if kind == "ebb" and not opened:  # into one that nobody has opened, as after a restart
        fresh = ebb_opt(model, "swap-fresh")
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


@row("dcp.save on 3 ranks, dcp.load on 2: the same state, the losses go on", limit=120)
def dcp_between_worlds() -> str:
    want, saved = ranks(3, _save_run, "ebb", 6, 10)[0]
    said = []
    for opened in (True, False):
        got, loaded = ranks(2, _load_run, "ebb", 6, 10, opened)[0]
        check_same(loaded, saved, f"states, opened {opened}")
        away = worst(got, want)
        assert away <= 1e-4, f"losses differ by {away}"
        said.append(f"{away:.1e}")
    return ", ".join(said)


@row("a DCP of Ebb's goes on under torch.optim, one of torch.optim's under Ebb", limit=120)
def dcp_both_directions() -> str:
    want, _ = ranks(3, _save_run, "ebb", 6, 10)[0]
    got, _ = ranks(2, _load_run, "torch", 6, 10)[0]
    there = worst(got, want)
    assert there <= 2e-4, f"under torch.optim: {there}"
    shutil.rmtree("saved")
    want, saved = ranks(2, _save_run, "torch", 6, 10)[0]
    got, loaded = ranks(3, _load_run, "ebb", 6, 10)[0]
    check_same(loaded, saved, "states of torch.optim")
    back = worst(got, want)
    assert back <= 2e-4, f"under Ebb: {back}"
    return f"to torch {there:.1e}, from torch {back:.1e}"


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


@row("states held over later steps and state_dicts keep their bits (async saves)")
def held() -> str:
    ranks(2, _async_run)
    return ""


def _late_shard(rank: int) -> None:
    """accelerate: the optimizer comes first, then its parameters are replaced by DTensors."""
    import ebb.torch
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


@row("parameters replaced by shards after the optimizer was made")
def late_shard() -> str:
    ranks(2, _late_shard)
    return ""


def _smaller_world(rank: int) -> str:
    """Two worlds of two ranks, an optimizer each (as pipeline stages have)."""
    import ebb.torch
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "dp"))
    stage = rank // 2
    model = seeded(lambda: GPT(tied=False), seed=stage)
    fully_shard(model, mesh=mesh["dp"])
    opt = ebb.torch.Muon(hand_groups(model), swap=f"stage{stage}",
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


@row("a mesh that is a part of the world (pipeline stages), process_group said", limit=60)
def smaller_world() -> str:
    ranks(4, _smaller_world)
    return ""


def _state_dict_not_called_by_all(rank: int) -> str:
    """DTensors: state_dict() is collective; a rank that does not come is named within the limit."""
    import ebb
    import ebb.torch
    model = cut_gpt()
    opt = ebb.torch.Muon(hand_groups(model), swap="swap", peer_timeout=timedelta(seconds=3))
    train(model, [opt], 0, 1)
    if rank == 0:
        began = time.monotonic()
        with raises(ebb.PeerError, says="1", within=6):
            opt.state_dict()
        return f"{time.monotonic() - began:.1f} s"
    time.sleep(7)
    return ""


@row("state_dict() of shards on one rank alone ends within the peer limit")
def lonely_state_dict() -> str:
    return ranks(2, _state_dict_not_called_by_all, together=False)[0]


if __name__ == "__main__":
    run_rows()
