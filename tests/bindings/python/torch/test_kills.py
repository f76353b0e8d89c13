"""SIGKILL of a random rank at a random moment, again and again, on a random number of ranks: where
a run goes on, its weights are those that an undisturbed run has at that step, to the bit.
Gradients are formulas of an element's place, so that no number of ranks changes a bit.

EBB_KILLS: how many (6); EBB_KILL_SEED."""
import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ebb.torch
from worlds import (Net, apart, check_same, fill, flat, free_port, hand_gradients, exact_groups,
                    places_of, row, run_rows, whole_weights)

LIVES = int(os.environ.get("EBB_KILLS", "6"))
LAST = 60 * LIVES  # steps of a run


def optimizer(model: torch.nn.Module, swap: str) -> ebb.torch.Muon:
    return ebb.torch.Muon(exact_groups(model), swap=swap, resume="store", budget="least",
                          tile="16KiB")


def undisturbed() -> list[dict[str, torch.Tensor]]:
    """Weights behind each step, in one process."""
    places = places_of(Net, None)
    model = Net()
    fill(model, places)
    behind = [whole_weights(model)]
    with optimizer(model, "undisturbed") as opt:
        for step in range(LAST):
            hand_gradients(model, places, step)
            opt.step()
            behind.append(whole_weights(model))
        opt.snapshot(wait=True)
    return behind


def train(rank: int, world: int, port: int, seed: int, told: Path) -> None:
    """Says in `told` at which step it goes on, with which weights; ends when it is killed."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    places = places_of(Net, flat)
    model = Net()
    flat(model)
    fill(model, places)
    opt = optimizer(model, "swap")
    opt.open()
    weights = whole_weights(model)
    if rank == 0:
        torch.save((opt.steps, weights), str(told) + ".part")
        os.rename(str(told) + ".part", told)
    pause = random.Random(seed)
    while opt.steps < LAST:
        hand_gradients(model, places, opt.steps)
        opt.step()
        if pause.random() < 0.4:  # the same on all ranks: it is a collective call
            opt.snapshot()
        time.sleep(0.004)
    opt.snapshot(wait=True)
    opt.close()
    dist.barrier()


def one_life(chance: random.Random, number: int) -> tuple[int, dict[str, torch.Tensor], bool]:
    """The step that it went on at, its weights there, and whether it came to its end."""
    world, port, seed = chance.randint(1, 4), free_port(), chance.randrange(1 << 30)
    told = Path(f"told-{number}").absolute()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.close(2)
            os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                train(rank, world, port, seed, told)
                os._exit(0)
            except BaseException as error:  # what a rank says whose peer was killed
                print(f"rank {rank} of {world}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
        pids.append(pid)
    until = time.monotonic() + 40
    while not told.exists() and time.monotonic() < until:
        time.sleep(0.005)
    assert told.exists(), f"life {number}: {world} ranks did not open"
    time.sleep(chance.uniform(0, 0.7))
    victim = chance.choice(pids)
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert time.monotonic() - began < 20, f"life {number}: the others went on for too long"
    step, weights = torch.load(told)
    return step, weights, codes.count(0) == world


@row("killed again and again: the bits of an undisturbed run", limit=60 + 10 * LIVES)
def killed() -> str:
    behind = apart(undisturbed, limit=60 + 2 * LIVES)
    chance = random.Random(int(os.environ.get("EBB_KILL_SEED", "20261126")))
    steps = []
    for number in range(LIVES):
        step, weights, _ = one_life(chance, number)
        check_same(weights, behind[step], f"life {number} at step {step}")
        steps.append(step)
        if step == LAST:
            break
    assert steps == sorted(steps), f"it went back behind what was committed: {steps}"
    assert steps[-1] > 0, "no life had a snapshot"
    return f"{len(steps)} lives, begun at steps {steps}"


if __name__ == "__main__":
    run_rows()
