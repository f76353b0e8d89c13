"""What the programs of tests/bench/python share: answers, made numbers, memory."""

import gc
import os
import sys
import threading
import time
from pathlib import Path

import torch

QUIET = 0.02  # seconds before each measurement: threads of the one before have gone to sleep


def serve(measure):
    """Answers what `measure(word)` answers, numbers, for each line that holds a word, or "error"
    and why. An empty line ends it. What libraries print is no answer: it goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        word = line.strip()
        if not word:
            break
        try:
            time.sleep(QUIET)
            answers.write(" ".join(map(str, measure(word))) + "\n")
        except Exception as error:  # the bench says it, and may go on without
            why = " ".join(f"{type(error).__name__} {error}".split())
            answers.write(f"error {why[:300]}\n")


def seconds_of(does, *args):
    began = time.perf_counter()
    does(*args)
    return time.perf_counter() - began


def apart_behind_steps(both, mine, theirs):
    """How far apart two models' weights are, by name, behind three steps of their optimizers."""
    for _ in range(3):
        mine.step()
        theirs.step()
    mine.close()
    return apart(*[[param.detach() for _, param in named] for named in both])


def made_numbers(param, shape):
    """As made_number of tests/bench/stepped_engine.cpp."""
    elems = torch.Size(shape).numel()
    mixed = (torch.arange(elems) * 2246822519 + (param + 1) * 2654435761) & 0xFFFFFFFF
    return ((mixed >> 8).float() * 2.0**-24 - 0.5).view(shape)


def matrices(count, rows, cols, seed=0):
    """Named parameters with gradients of normal numbers."""
    made = torch.Generator().manual_seed(seed)
    named = []
    for i in range(count):
        param = torch.nn.Parameter(torch.randn(rows, cols, generator=made) * 0.02)
        param.grad = torch.randn(rows, cols, generator=made)
        named.append((f"layers.{i}.weight", param))
    return named


def apart(ours, theirs):
    """How far apart weights are, by their norms; the worst of all matrices."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs))


def anonymous():
    """Bytes of this process' anonymous memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Peak:
    """with Peak() as peak: ...; peak.bytes is the most anonymous memory that was seen meanwhile,
    every two milliseconds."""

    def __enter__(self):
        gc.collect()
        self.bytes, self._ends = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._ends.wait(0.002):
            self.bytes = max(self.bytes, anonymous())

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()
        self.bytes = max(self.bytes, anonymous())
