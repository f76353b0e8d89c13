"""The ranks that share parameters: connected through the trainer's own process group, which passes
a line of text for each; from then on Ebb has connections of its own."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from ebb import _library
from ebb.errors import PeerError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process' place among those that share the parameters. `group` is torch's, None where the
    process is alone."""

    rank: int
    size: int
    group: Any = None
    members: tuple[int, ...] = (0,)  # torch's numbers of the ranks

    def together(self, mine: Callable[[], T]) -> T:
        """[C] What this rank does alone; where one fails, it does on all, and at once."""
        error: Exception | None = None
        try:
            made = mine()
        except Exception as why:
            error = why
        told = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, said in enumerate(told):
            if said is not None:
                raise PeerError(f"rank {rank}: {said}")
        return made

    def gather(self, mine: Any) -> list[Any]:
        """[C] What each rank says, by rank."""
        if self.size == 1:
            return [mine]
        all_of_them: list[Any] = [None] * self.size
        dist.all_gather_object(all_of_them, mine, group=self.group)
        return all_of_them

    def of_first(self, mine: Any) -> Any:
        """[C] What rank 0 says."""
        said = [mine]
        dist.broadcast_object_list(said, src=self.members[0], group=self.group)
        return said[0]


def world_of(group: Any) -> World:
    """Of a process group, None: the default one, or this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return World(0, 1)
    members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    return World(dist.get_rank(group), dist.get_world_size(group), group, tuple(members))


def connect(world: World, limit: timedelta) -> int:
    """[C] A handle of the world's ranks, to be closed. `limit`: how long one may keep others
    waiting."""
    ranks = ctypes.c_void_p()
    if world.size == 1:
        _library.call("ebb_ranks_alone", ctypes.byref(ranks))
        return int(ranks.value or 0)
    host = _host(world)
    listener, line = world.together(lambda: _listen(host))
    lines = world.gather(line)
    addresses = (ctypes.c_char_p * world.size)(*[one.encode() for one in lines])
    milliseconds = int(limit.total_seconds() * 1000)
    _library.call(
        "ebb_ranks_connect", listener, world.rank, world.size, addresses, milliseconds,
        ctypes.byref(ranks),
    )  # fmt: skip
    return int(ranks.value or 0)


def _listen(host: bytes | None) -> tuple[ctypes.c_void_p, str]:
    listener, line = ctypes.c_void_p(), ctypes.c_void_p()
    _library.call("ebb_listener_open", host, ctypes.byref(listener), ctypes.byref(line))
    return listener, _library.text(line)


def _host(world: World) -> bytes | None:
    """By which name other machines reach this one; None: all ranks are on this machine."""
    if len(set(world.gather(_machine()))) == 1:
        return None
    asked = os.environ.get("EBB_HOST")
    if asked:
        return asked.encode()
    # Whichever of this machine's addresses leads to where the trainer's group met.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR", "8.8.8.8"), 9))
            return str(probe.getsockname()[0]).encode()
        except OSError:
            return socket.gethostname().encode()


def _machine() -> str:
    """The same on ranks that reach each other without a network."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
