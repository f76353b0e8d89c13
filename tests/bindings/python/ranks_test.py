"""Ranks that are processes, and ranks that are threads of one."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import unittest
from collections.abc import Callable
from ctypes import byref, c_int64, c_void_p
from multiprocessing.connection import Connection
from typing import Any

import ebb
from ebb import _library
from small_model import SmallModel, connect, listen, step

WORLD = 2
STEPS = 3


def agree(ranks: c_void_p, mine: int) -> int:
    smallest = c_int64()
    _library.call("ebb_ranks_agree", ranks, mine, byref(smallest))
    return smallest.value


def train(rank: int, directory: str, parent: Connection) -> None:
    """A process: connects, trains, tells its parent what came out."""
    listener, address = listen()
    parent.send(address)
    ranks = connect(listener, rank, parent.recv())
    smallest = agree(ranks, 10 - rank)
    model = SmallModel(WORLD)
    engine = model.open(ranks, directory)
    for number in range(STEPS):
        made = step(engine, number).step
    _library.call("ebb_engine_close", engine)
    _library.call("ebb_ranks_close", ranks)
    parent.send((smallest, made, model.values()))


def give_up(rank: int, directory: str, parent: Connection) -> None:
    """A process of which rank 0 gives up, and rank 1 is told so."""
    listener, address = listen()
    parent.send(address)
    ranks = connect(listener, rank, parent.recv())
    agree(ranks, rank)
    said = ""
    if rank == 0:
        _library.call("ebb_ranks_abort", ranks)
    else:
        try:
            agree(ranks, rank)
        except ebb.PeerError as error:
            said = str(error)
    parent.send(said)


class Ranks(unittest.TestCase):
    def in_processes(self, body: Callable[[int, str, Connection], None]) -> list[Any]:
        """What a process of each rank sends, once it has everybody's address."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(WORLD)]
        processes = [
            spawn.Process(target=body, args=(rank, scratch.name, there), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        addresses = [self.heard(here) for here, _ in pipes]
        for here, _ in pipes:
            here.send(addresses)
        answers = [self.heard(here) for here, _ in pipes]
        for process in processes:
            process.join(60)
            self.assertEqual(process.exitcode, 0)
        return answers

    def heard(self, pipe: Connection) -> Any:
        self.assertTrue(pipe.poll(60), "a rank says nothing")
        return pipe.recv()

    def test_two_processes_connect_agree_and_train_one_model(self) -> None:
        (smallest, made, weights), other = self.in_processes(train)
        self.assertEqual((smallest, made), (9, STEPS))
        self.assertEqual(other, (smallest, made, weights))
        self.assertNotEqual(weights, SmallModel().values())

    def test_who_gives_up_wakes_the_other_with_an_exception(self) -> None:
        self.assertEqual(self.in_processes(give_up), ["", "rank 0 gave up"])

    # Each waits for the other: with Python's lock in hand neither would ever come.
    def test_a_call_lets_other_threads_run(self) -> None:
        listeners = [listen() for _ in range(WORLD)]
        addresses = [address for _, address in listeners]
        found: dict[int, int] = {}

        def body(rank: int) -> None:
            ranks = connect(listeners[rank][0], rank, addresses)
            found[rank] = agree(ranks, rank + 5)
            _library.call("ebb_ranks_close", ranks)

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, {0: 5, 1: 5})

    def test_who_does_not_come_is_named(self) -> None:
        listener, mine = listen()
        gone, other = listen()
        _library.call("ebb_listener_close", gone)
        with self.assertRaises(ebb.PeerError) as caught:
            connect(listener, 0, [mine, other], limit_ms=200)
        self.assertRegex(str(caught.exception), "rank 1")


if __name__ == "__main__":
    unittest.main()
