"""Rows of tests, worlds of ranks, and small models, for ebb.torch beside torch.

A row is a function; each runs in a process of its own under a hard limit, so that one that hangs or
dies fails like any other. All processes are forks of one that has imported torch and done nothing
with it: importing it once more for each would take most of the time.

Where bits are compared, gradients and weights are formulas of an element's place in the whole
tensor: no reduction is involved, so that no number of ranks can change a bit."""
import contextlib
import ctypes
import faulthandler
import os
import shutil
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

# --- rows ---------------------------------------------------------------------------------------


class Skip(Exception):
    """A row that does not apply here, with the reason."""


@dataclass
class Row:
    label: str
    limit: float
    does: Callable[[], str | None]


ROWS: list[Row] = []


def row(label: str, limit: float = 60):
    """Makes a function a row; it answers figures for the verdict, or raises."""
    def add(does: Callable[[], str | None]):
        ROWS.append(Row(label, limit, does))
        return does
    return add


def one_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _row_process(does: Callable[[], str | None], log: Path, limit: float) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, limit - 2))  # where it hangs, before it is killed
    status = 0
    try:
        verdict = does() or ""
    except Skip as why:
        status, verdict = 77, str(why)
    except BaseException as error:
        status, verdict = 1, f"{type(error).__name__}: {one_line(str(error))}"
        traceback.print_exc()
    (log.parent / "verdict").write_text(verdict)
    sys.stdout.flush()
    os._exit(status)


def wait_for(pid: int, limit: float) -> int | None:
    """The wait status of a child; None if it still runs after `limit` seconds."""
    until = time.monotonic() + limit
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


def run_rows() -> None:
    """SCRIPT [WORD...]: the rows whose label or function has one of the words; -v: all they say."""
    torch.set_num_threads(1)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict()  # imports seconds' worth of torch
    words = [word for word in sys.argv[1:] if word != "-v"]
    good = bad = 0
    for each in ROWS:
        if words and not any(w in each.label or w in each.does.__name__ for w in words):
            continue
        work = Path(tempfile.mkdtemp(prefix="ebb-torch-"))
        log = work / "log"
        sys.stdout.flush()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.chdir(work)
            _row_process(each.does, log, each.limit)
        status = wait_for(pid, each.limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # ranks and children that it left behind
        if status is None:
            os.waitpid(pid, 0)
        text = log.read_text(errors="replace") if log.exists() else ""
        verdict = work / "verdict"
        said = " ".join(verdict.read_text().split()) if verdict.exists() else one_line(text)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if code is None:
            said = f"hangs: over {each.limit:.0f} s"
        elif code < 0:
            said = f"killed by {signal.Signals(-code).name}; {said}"
        word = {0: "ok", 77: "skip"}.get(code, "FAILED")
        good += word == "ok"
        bad += word == "FAILED"
        took = time.monotonic() - began
        print(f"{word:6} {each.label:64} {said[:150]} ({took:.1f} s)", flush=True)
        if word == "FAILED" or "-v" in sys.argv and word != "ok":
            print(textwrap.indent(text[-8000:], "    "), flush=True)
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if bad or not good else 0)


# --- processes ----------------------------------------------------------------------------------


def _answer(does: Callable[..., Any], args: tuple, into: Path) -> None:
    try:
        answer = does(*args)
        torch.save(answer, str(into) + ".part")
        os.rename(str(into) + ".part", into)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        Path(str(into) + ".error").write_text(traceback.format_exc())
        os._exit(1)


def apart(does: Callable[..., Any], *args, limit: float = 50) -> Any:
    """What `does(*args)` answers in a process of its own."""
    return _all([lambda: does(*args)], limit)[0]


def _all(these: list[Callable[[], Any]], limit: float, dies: tuple[int, ...] = ()) -> list[Any]:
    folder = Path(tempfile.mkdtemp(dir="."))
    pids = []
    for number, does in enumerate(these):
        pid = os.fork()
        if pid == 0:
            _answer(does, (), folder / str(number))
        pids.append(pid)
    until = time.monotonic() + limit
    left = dict(enumerate(pids))
    failed = []
    while left and time.monotonic() < until:
        for number, pid in list(left.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del left[number]
            if number not in dies and os.waitstatus_to_exitcode(status) != 0:
                error = folder / f"{number}.error"
                failed.append(f"{number}: " + (error.read_text() if error.exists()
                                               else f"ended with {status}"))
        if failed:
            until = min(until, time.monotonic() + 5)  # the others, if they still say something
        time.sleep(0.005)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if failed:
        # The last line is the verdict: of the first that failed, not of those that heard of it.
        raise AssertionError("\n".join(sorted(failed, key=lambda text: "PeerError" not in text)))
    if left:
        raise AssertionError(f"hangs: {sorted(left)} of {len(these)} after {limit:.0f} s")
    return [torch.load(folder / str(n), weights_only=False) if (folder / str(n)).exists() else None
            for n in range(len(these))]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ranks(world: int, does: Callable[..., Any], *args, limit: float = 50,
          dies: tuple[int, ...] = (), together: bool = True) -> list[Any]:
    """What `does(rank, *args)` answers on each rank of a gloo world; None of ranks that die.
    `together`: they wait for each other before they end."""
    port = str(free_port())

    def one(rank: int) -> Any:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank),
                          WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=30))
        answer = does(rank, *args)
        if together and not dies:
            with contextlib.suppress(RuntimeError):  # who is through it first may be gone
                dist.barrier()
            dist.destroy_process_group()
        return answer

    return _all([lambda rank=rank: one(rank) for rank in range(world)], limit, dies)


# --- what is checked ----------------------------------------------------------------------------


def bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().contiguous()
    return tensor.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(bits(a), bits(b)))


def check_same(mine: dict[str, Tensor], other: dict[str, Tensor], what: str) -> None:
    assert mine.keys() == other.keys(), f"{what}: {sorted(mine)} and {sorted(other)}"
    wrong = {name: float((mine[name].double() - other[name].double()).abs().max())
             if mine[name].shape == other[name].shape else "shape"
             for name in mine if not same_bits(mine[name], other[name])}
    assert not wrong, f"{what}: bits differ, by {wrong}"


def worst(a: list[float], b: list[float]) -> float:
    """The largest relative difference of two lists of losses."""
    assert len(a) == len(b)
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


@contextlib.contextmanager
def raises(*kinds: type[BaseException], says: str | tuple[str, ...] = (),
           within: float = 2.0) -> Iterator[list[BaseException]]:
    """That it raises one of these, quickly, with all of these words (case does not matter)."""
    caught: list[BaseException] = []
    began = time.monotonic()
    try:
        yield caught
    except kinds as error:
        took = time.monotonic() - began
        caught.append(error)
        text = " ".join([str(error), *getattr(error, "__notes__", [])]).lower()
        for word in (says,) if isinstance(says, str) else says:
            assert word.lower() in text, f"{type(error).__name__} does not say {word!r}: {text}"
        assert took <= within, f"{type(error).__name__} only after {took:.1f} s"
        print(f"raised {type(error).__name__}: {text}")
        return
    raise AssertionError(f"nothing raised where {[k.__name__ for k in kinds]} must be")


def rss_anon() -> int:
    """Anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@contextlib.contextmanager
def most_memory() -> Iterator[list[int]]:
    """What anonymous memory grew by at most, in bytes, when it is over: the list's only number."""
    ctypes.CDLL(None).malloc_trim(0)  # else what was freed before is taken again
    before, most, over = rss_anon(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], rss_anon() - before)
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


# --- models -------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers."""
    def __init__(self, wide: int = 40) -> None:
        super().__init__()
        self.up = nn.Linear(24, wide)
        self.down = nn.Linear(wide, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.down(torch.tanh(self.up(x))), y)


class InOut(nn.Module):
    """A matrix stored (in, out), as GPT-2's are."""
    def __init__(self, wide_in: int, wide_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(wide_in, wide_out).normal_(std=0.05))
        self.bias = nn.Parameter(torch.zeros(wide_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = InOut(wide, 3 * wide), InOut(wide, wide)
        self.up, self.down = InOut(wide, 4 * wide), InOut(4 * wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """GPT-2 in small: matrices stored (in, out), the head tied to the embedding."""
    def __init__(self, words: int = 61, wide: int = 32, layers: int = 2, heads: int = 4,
                 long: int = 24, tied: bool = True) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(words, wide), nn.Embedding(long, wide)
        self.blocks = nn.ModuleList(Block(wide, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, words, bias=False)
        if tied:
            nn.init.normal_(self.tok.weight, std=0.05)
            self.head.weight = self.tok.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.tok(x) + self.pos.weight[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def net_batch(step: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(9000 + step)
    x = torch.randn(64, 24, generator=made)
    return x, (x[:, :10] + x[:, 10:20]).argmax(1)


def gpt_batch(step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1000 + step)
    x = torch.cumsum(torch.randint(0, 7, (12, 24), generator=made), 1) % 61
    x = x[rank::world]
    return x, torch.roll(x, -1, 1)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def is_hidden(name: str, p: Tensor) -> bool:
    return p.ndim == 2 and not name.startswith(("tok", "pos", "head"))


def split(model: nn.Module) -> tuple[list, list]:
    """Named matrices for Muon, and the rest."""
    named = list(model.named_parameters())
    return [x for x in named if is_hidden(*x)], [x for x in named if not is_hidden(*x)]


def rate(model: nn.Module) -> float:
    """For Muon. A net learns so fast that bf16's roundings show at a GPT's."""
    return 0.005 if isinstance(model, Net) else 0.02


def hand_groups(model: nn.Module, adam_lr: float = 3e-3, **muon) -> list[dict[str, Any]]:
    """Groups as a user writes them, without ebb.torch.groups()."""
    matrices, rest = split(model)
    lr = rate(model)
    return [dict(params=matrices, algorithm="muon", lr=lr, weight_decay=0.1, **muon),
            dict(params=rest, algorithm="adamw", lr=adam_lr, weight_decay=0.01)]


def exact_groups(model: nn.Module, **muon) -> list[dict[str, Any]]:
    """Whose steps have the same bits in every store: whether products in bf16 are the processor's
    own is measured when a store is made."""
    return hand_groups(model, precision="fp32", **muon)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """In the host's memory."""
    return {name: local(p).detach().cpu().clone() for name, p in model.named_parameters()}


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """[collective] Full tensors of sharded parameters."""
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in model.named_parameters()}


# --- formulas of an element's place -------------------------------------------------------------


def formula(place: Tensor, salt: int) -> Tensor:
    """Numbers in [-1, 1) of 16 bits: exact in fp32, whoever computes them."""
    x = (place.long() * 2654435761 + (salt & 0xFFFF) * 40503 + 12345) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 739981 + salt) & 0xFFFFFFFF
    return (((x ^ (x >> 13)) & 0xFFFF) - 32768).float() / 32768


def salt_of(name: str, step: int) -> int:
    return (zlib.crc32(name.encode()) + 7919 * step) & 0xFFFFFF


def local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


Parallel = Callable[[nn.Module], None]


def places_of(make: Callable[[], nn.Module], parallel: Parallel | None) -> dict[str, Tensor]:
    """Which elements of each whole parameter this rank has. A model is cut whose parameters hold
    their own places: torch says it, and nobody's arithmetic of placements."""
    model = make().float()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel()).view(p.shape))
    if parallel is not None:
        parallel(model)
    return {name: local(p).detach().cpu().long() for name, p in model.named_parameters()}


def fill(model: nn.Module, places: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            local(p).copy_(formula(places[name], salt_of(name, 0)) * 0.25)


def hand_gradients(model: nn.Module, places: dict[str, Tensor], step: int) -> None:
    for name, p in model.named_parameters():
        mine = formula(places[name], salt_of(name, step)).to(local(p).device, p.dtype)
        if isinstance(p, DTensor):
            p.grad = DTensor.from_local(mine, p.device_mesh, p.placements, run_check=False,
                                        shape=p.shape, stride=p.stride())
        else:
            p.grad = mine


def flat(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def hsdp(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copy", "part"))
    for child in model.children():
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)
