"""ebb.open() beside torch: every fixture's tensors, and its weights into modules, plain and sharded
by FSDP2 over 2 and 3 ranks, against the digests that the framework's elements had."""
import contextlib
import hashlib
import io
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import ebb
from opened import FIXTURES, Holder, holds, opened
from worlds import apart, check_same, most_memory, ranks, raises, row, run_rows, same_bits

MIB = 1 << 20


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
                          .tobytes()).hexdigest()


@row("every tensor of every fixture, through torch and NumPy: the same bytes", limit=120)
def tensors() -> str:
    count = 0
    for name, checkpoint, _ in opened():
        for ref in checkpoint.tensors:
            whole, array = ref.torch(), ref.numpy()
            assert str(whole.dtype)[6:] == ref.dtype and tuple(whole.shape) == ref.shape, ref
            assert digest(whole) == hashlib.sha256(array.tobytes()).hexdigest(), (name, ref)
            if ref.shape and ref.shape[0] > 1:
                box = (slice(1, None), *(slice(0, 2) for _ in ref.shape[1:]))
                assert digest(ref.torch(box)) == digest(whole[box]), (name, ref)
                assert ref.numpy(box).tobytes() == array[box].tobytes(), (name, ref)
            count += 1
        checkpoint.close()
    return f"{count} tensors"


def into_modules(rank: int = 0, dtype=None) -> dict[str, str]:
    found = {}
    world = dist.get_world_size() if dist.is_initialized() else 1
    for name, _, weights in opened():
        if weights is None or not holds(weights):
            continue
        model = Holder(weights, dtype)
        if world > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        report = weights.load_into(model)
        assert not report.missing and not report.unexpected and report.tensors, name
        for key, tensor in model.state_dict().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[f"{name} {key}"] = digest(whole)
    return found


@row("weights into plain modules and FSDP2's of 2 and 3 ranks: the same bits", limit=240)
def modules() -> str:
    want = apart(lambda: {f"{name} {key}": digest(ref.torch()) for name, _, weights in opened()
                          if weights is not None and holds(weights)
                          for key, ref in weights.items()})
    assert len(want) > 300, len(want)
    assert apart(into_modules) == want
    for world in (2, 3):
        for found in ranks(world, into_modules, limit=100):
            assert found == want, [key for key in want if found.get(key) != want[key]][:3]
    return f"{len(want)} parameters and buffers"


@row("into bf16 and into what is not contiguous: as torch converts", limit=60)
def converted() -> None:
    for name, _, weights in opened():
        if weights is None or not holds(weights):
            continue
        model = Holder(weights, torch.bfloat16)
        weights.load_into(model)
        for key, tensor in model.state_dict().items():
            assert same_bits(tensor, weights[key].torch().to(tensor.dtype)) or bool(
                tensor.isnan().any()), (name, key)
        ref = next(iter(weights.values()))
        if len(ref.shape) == 2:
            turned = torch.zeros(ref.shape[::-1], dtype=getattr(torch, ref.dtype)).T
            assert torch.equal(ref.torch(out=turned), ref.torch())


@row("what does not fit is refused by name, and strict=False reads the rest")
def refused() -> None:
    checkpoint = ebb.open(FIXTURES / "dcp/fsdp2_w2_odd_rows_tied/data")
    weights = checkpoint.weights()
    model = Holder(weights)
    first = next(n for n, p in model.named_parameters())
    model.register_parameter("mine", nn.Parameter(torch.zeros(3)))
    with raises(ebb.LayoutError, says=("mine", "strict=False")):
        checkpoint.load_into(model)
    report = checkpoint.load_into(model, strict=False)
    assert report.missing == ["mine"] and not report.unexpected
    assert bool(model.state_dict()[first].any())
    one = nn.Linear(3, 2)
    with raises(ebb.LayoutError, says="the checkpoint alone has"):
        checkpoint.load_into(one)
    ref = next(iter(weights.values()))
    with raises(ebb.LayoutError, says=ref.name):
        ref.torch(out=torch.zeros(1, 1, 1, 1))
    with raises(ebb.LayoutError, says=ref.name):
        ref.torch(out=torch.zeros(ref.shape, dtype=torch.int32))
    with raises(ebb.UsageError, says="to_empty"), torch.device("meta"):
        checkpoint.load_into(Holder(weights))


class Copies(nn.Linear):
    """Its state_dict() has no parameters of its own, as FSDP1's."""

    def state_dict(self, *args, **kwargs):
        return {name: t.detach().clone() for name, t in super().state_dict(*args, **kwargs).items()}


class Counts(nn.Linear):
    """With a state that is neither a parameter nor a buffer, as TransformerEngine's modules."""

    said = torch.arange(3)

    def get_extra_state(self):
        return self.said

    def set_extra_state(self, state):
        self.said = state


@row("load_into() fills the module itself: ties, extra states, wrappers; copies are refused")
def modules_of_others() -> None:
    made = nn.Sequential(nn.Linear(3, 4), Counts(4, 2))
    made[1].said = torch.tensor([5, 6, 7, 8])
    torch.save(made.state_dict(), "plain.pt")
    torch.save(nn.DataParallel(made).state_dict(), "wrapped.pt")
    for file in ("plain.pt", "wrapped.pt"):
        for wrap in (lambda m: m, nn.DataParallel, torch.compile):
            model = nn.Sequential(nn.Linear(3, 4), Counts(4, 2))
            report = ebb.open(file).load_into(wrap(model))
            assert report.tensors == 5 and not report.missing + report.unexpected, report
            check_same(dict(model.named_parameters()), dict(made.named_parameters()), file)
            assert model[1].said.tolist() == [5, 6, 7, 8]
    torch.save(nn.Linear(4, 2).state_dict(), "linear.pt")
    with raises(ebb.Unsupported, says=("hands out a copy", "weights()")):
        ebb.open("linear.pt").load_into(Copies(4, 2))

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Parameter(torch.zeros(2))

    model, theirs = Tied(), Tied()
    both = {"a": torch.ones(2), "b": torch.full((2,), 2.0)}
    for given in (both, {"a": both["a"]}, {"b": both["b"]}):
        torch.save(given, "tied.pt")
        report = ebb.open("tied.pt").load_into(model)
        theirs.load_state_dict(given, strict=False)
        assert not report.missing and torch.equal(model.a, theirs.a), (given, model.a)


@row("what is read or saved with a sign or conjugated, and what has no memory of its own")
def views() -> None:
    base = torch.randn(3, 4, dtype=torch.complex64)
    tensors = {"conj": base.conj(), "neg": base.conj().imag, "both": base.conj()[:, 1:].T}
    assert tensors["conj"].is_conj() and tensors["neg"].is_neg()
    ebb.save("views", tensors)
    checkpoint = ebb.open("views")
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint[name].torch(), tensor), name
    into = torch.zeros(3, 4, dtype=torch.complex64).conj()
    assert torch.equal(checkpoint["conj"].torch(out=into), tensors["conj"])
    into = torch._neg_view(torch.zeros(3, 4))
    assert torch.equal(checkpoint["neg"].torch(out=into), tensors["neg"])
    for what, says in ((torch.empty(2, device="meta"), "meta"),
                       (torch.eye(3).to_sparse(), "torch.sparse_coo"),
                       (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
                       (np.ma.array([1.0, 2.0], mask=[0, 1]), "masked")):
        with raises(ebb.Unsupported, says=("odd", says)):
            ebb.save("none", {"odd": what})


def forget(file: str) -> None:
    """The kernel's copy of what it holds, so that reading takes what it takes from a disk."""
    with open(file) as opened_file:
        os.fsync(opened_file.fileno())
        os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(folder: str) -> str:
    from safetensors.torch import load_file, save_file
    made = {f"layers.{i}.weight": torch.randn(2048, 4096) for i in range(8)}
    save_file(made, f"{folder}/model.safetensors")
    total = sum(t.nbytes for t in made.values())
    checkpoint = ebb.open(f"{folder}/model.safetensors")
    model = Holder(checkpoint.weights(), torch.bfloat16)
    odd = ebb.open(FIXTURES / "safetensors/odd_header_spaces/data")
    odd.load_into(Holder(odd.weights()))
    forget(f"{folder}/model.safetensors")
    for tensor in model.state_dict().values():
        tensor.fill_(1)  # zeros that nobody has touched take no memory yet
    with most_memory() as most:
        checkpoint.load_into(model)
    grown = most[0]
    assert grown < 64 * MIB, grown
    columns = {name: torch.ones(2048, 2048, dtype=torch.bfloat16) for name in checkpoint}
    forget(f"{folder}/model.safetensors")
    with most_memory() as most:
        for name, half in columns.items():
            checkpoint[name].torch((slice(None), slice(1024, 3072)), out=half)
    assert most[0] < 64 * MIB, most[0]
    told = []
    checkpoint.load_into(model, progress=lambda *now: told.append(now))
    assert told == sorted(told) and told[-1] == (total, total) and len(told) > 2, told
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        checkpoint.load_into(model, progress=True)
    assert "reading: 100%" in shown.getvalue(), shown.getvalue()
    theirs = load_file(f"{folder}/model.safetensors")
    for name, ref in checkpoint.items():
        assert same_bits(columns[name], theirs[name][:, 1024:3072].bfloat16()), name
        assert same_bits(ref.torch(), theirs[name]), name
        assert same_bits(model.state_dict()[name], theirs[name].bfloat16()), name
    return f"{grown / MIB:+.0f} MiB beside {total // MIB} MiB, {most[0] / MIB:+.0f} of columns"


@row("safetensors' own bytes; at most 64 MiB beside the model", limit=90)
def memory() -> str:
    os.mkdir("st")
    return apart(in_memory, "st")


def made() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = {"wide.weight": (7, 50), "one.weight": (1, 9), "bias": (13,), "big": (1030, 300)}
    tensors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**tensors, "half": tensors["bias"].bfloat16(), "count": torch.arange(5)}


def save_sharded(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = {name: distribute_tensor(t, mesh, [Shard(0)]) for name, t in made().items()}
    # What each rank has whole, and nobody made alike (running means): torch keeps rank 0's.
    tensors["everywhere"] = torch.full((3, 3), 2.0 + rank)
    ebb.save("sharded", tensors, step=12)
    with raises(ebb.PeerError if rank else ebb.UsageError, says="" if rank else "exists"):
        ebb.save("sharded", tensors)
    with raises(ebb.UsageError, says=("big", "to_local")):
        ebb.open("sharded")["big"].torch(out=tensors["big"])
    other = {"w": distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)])}
    with raises(ebb.Unsupported, says=("w", "Shard(dim=1)", "rows")):
        ebb.save("columns", other)
    assert not os.path.exists("columns")


def load_by_torch(rank: int) -> dict[str, torch.Tensor]:
    """With torch's own checkpoint reader, sharded otherwise."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    into = {name: distribute_tensor(torch.zeros_like(t), mesh, [Shard(0)])
            for name, t in made().items()}
    into["everywhere"] = torch.zeros(3, 3)
    dcp.load(into, checkpoint_id="sharded")
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in into.items()}


@row("ebb.save() of sharded tensors on 3 ranks: torch's reader has them on 2, and alone", limit=90)
def saved_by_ranks() -> None:
    ranks(3, save_sharded)
    want = {**made(), "everywhere": torch.full((3, 3), 2.0)}
    for found in [*ranks(2, load_by_torch), *ranks(1, load_by_torch)]:
        check_same(found, want, "what torch read")
    checkpoint = ebb.open("sharded")
    assert checkpoint.verify()["sound"]
    check_same({name: ref.torch() for name, ref in checkpoint.items()}, want, "what ebb read")


@row("ebb.save() in every format: ebb.open() has the same; safetensors' reader, torch.load too")
def saved() -> str:
    from safetensors.torch import load_file
    tensors = {**made(), "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3)}
    # Those are folders of a job: nothing without an optimizer.
    jobs = ("megatron-fsdp", "transformers", "accelerate-fsdp")
    formats = [one for one in ebb.about()["formats"] if one not in jobs]
    for one in formats:
        ebb.save(f"in-{one}", tensors, format=one)
        checkpoint = ebb.open(f"in-{one}")
        found = {ref.name: ref for ref in checkpoint.tensors
                 if ref.state in ("param", "master", "buffer")}
        for name, tensor in tensors.items():
            if name not in found:  # of what has no elements some formats store nothing
                assert tensor.numel() == 0, (one, name)
                continue
            got = found[name].torch()
            assert torch.equal(got.to(tensor.dtype), tensor), (one, name)
    ebb.save("one.safetensors", tensors, format="safetensors")
    read = load_file("one.safetensors")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], t) for name, t in tensors.items())
    ebb.save("arrays.safetensors", {"x": np.arange(6.0).reshape(2, 3), "n": np.float32(3)},
             format="safetensors")
    assert load_file("arrays.safetensors")["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with raises(ebb.UsageError, says="no format"):
        ebb.save("x", tensors, format="zip")
    with raises(ebb.Unsupported, says="object"):
        ebb.save("x", {"o": np.array([{}])})
    with raises(TypeError, says="is no name"):
        ebb.save("x", {3: tensors["bias"]})
    return ", ".join(formats)


if __name__ == "__main__":
    run_rows()
