#!/usr/bin/env python3
"""DeepSpeed's aio engine in the order of its PipelinedOptimizerSwapper; for tests/bench/swap.

    deepspeed_swap.py DIRECTORY BYTES

Reads what to measure next, one word a line, and answers "SECONDS READ WRITTEN", or "error" and why.
An empty line ends it. State is fp32 parameters and momentum in sub-groups of 128 MiB, a file for each
tensor. Left out, to DeepSpeed's advantage: its Python per sub-group, the 16-bit copies and, but for
`gradients`, what it moves of gradients.
"""

import os
import sys
import time

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

SUB_GROUP = 128 << 20  # bytes of parameters and momentum together
RESIDENT = 0.25

# block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism
DEFAULT = (1 << 20, 8, False, True, 1)
TUNED = (1 << 20, 32, False, True, 2)


class Swapper:
    """One pair of handles, as the swapper has, and the buffers of a full pipeline."""

    def __init__(self, aio, directory, count, elems):
        self.reader, self.writer = aio(*self.settings), aio(*self.settings)
        self.directory, self.count, self.elems = directory, count, elems
        example = torch.zeros(1)
        new = lambda: self.reader.new_cpu_locked_tensor(elems, example).zero_()
        # Read ahead, computed, written behind: three of each state.
        self.free = [tuple(new() for _ in self.states) for _ in range(3)]
        self.kept = {}  # sub-groups in memory, MLP-Offload's resident tail
        self.steps = 0
        for group in range(count):  # every file is there, and holds a beginning
            buffers = self.free[0]
            for place, (buffer, path) in enumerate(zip(buffers, self.paths(group))):
                buffer.fill_(self.beginning(place))
                self.writer.async_pwrite(buffer, path, 0)
            assert self.writer.wait() == len(buffers)

    settings, states, keep, alternate = DEFAULT, ("param", "momentum"), 0.0, False

    def paths(self, group):
        return [os.path.join(self.directory, f"{state}-{group}.tensor.swp") for state in self.states]

    def beginning(self, place):
        return 1.0

    def written(self, buffers):
        return buffers[:2]  # a gradient is not written back

    def read(self, group):
        if group in self.kept:
            return self.kept.pop(group), 0
        buffers = self.free.pop()
        for buffer, path in zip(buffers, self.paths(group)):
            self.reader.async_pread(buffer, path, 0)
        return buffers, len(buffers)

    def update(self, group, buffers):
        param, momentum = buffers[:2]
        momentum.mul_(0.9).add_(param, alpha=0.01)
        param.add_(momentum, alpha=-0.1)

    def spill_gradients(self):
        return 0

    def step(self):
        order = list(range(self.count))
        if self.alternate and self.steps % 2:
            order.reverse()
        self.steps += 1
        tail = set(order[self.count - int(self.keep * self.count):])
        tensor_bytes = 4 * self.elems
        moved_in, moved_out = 0, self.spill_gradients() * tensor_bytes
        coming, writing = self.read(order[0]), None
        for place, group in enumerate(order):
            buffers, operations = coming
            if operations:
                assert self.reader.wait() == operations
            moved_in += operations * tensor_bytes
            if place + 1 < len(order):
                coming = self.read(order[place + 1])
            self.update(group, buffers)
            if writing is not None:
                assert self.writer.wait() == len(self.written(writing))
                self.free.append(writing)
                writing = None
            if group in tail:
                self.kept[group] = buffers
                continue
            for buffer, path in zip(self.written(buffers), self.paths(group)):
                self.writer.async_pwrite(buffer, path, 0)
                moved_out += tensor_bytes
            writing = buffers
        if writing is not None:
            assert self.writer.wait() == len(self.written(writing))
            self.free.append(writing)
        return moved_in, moved_out


class Tuned(Swapper):
    settings = TUNED


class WithGradients(Swapper):
    """As DeepSpeed does: backward has written fp32 gradients, the step reads them."""

    states = ("param", "momentum", "gradient")

    def spill_gradients(self):
        for group in range(self.count):
            self.writer.async_pwrite(self.free[-1][2], self.paths(group)[2], 0)
            assert self.writer.wait() == 1
        return self.count


class MlpOffload(Tuned):
    """Alternating order with a resident tail, and no gradients on the disk."""

    keep, alternate = RESIDENT, True

    def __init__(self, aio, directory, count, elems):
        super().__init__(aio, directory, count, elems)
        example = torch.zeros(1)
        for _ in range(int(self.keep * count)):
            self.free.append(tuple(self.reader.new_cpu_locked_tensor(elems, example).zero_()
                                   for _ in self.states))


KINDS = {"default": Swapper, "tuned": Tuned, "gradients": WithGradients, "mlp": MlpOffload}


def main():
    directory, size = sys.argv[1], int(sys.argv[2])
    os.makedirs(directory, exist_ok=True)
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # what the frameworks print goes to stderr
    os.dup2(2, 1)
    aio = AsyncIOBuilder().load().aio_handle
    count = max(1, size // SUB_GROUP)
    elems = size // count // 8 // 1024 * 1024
    swappers = {}
    for line in sys.stdin:
        what = line.strip()
        if not what:
            break
        try:
            if what not in swappers:
                swappers[what] = KINDS[what](aio, directory, count, elems)
                swappers[what].step()
            begin = time.perf_counter()
            read, written = swappers[what].step()
            answers.write(f"{time.perf_counter() - begin} {read} {written}\n")
        except Exception as error:  # the bench goes on without this line
            answers.write(f"error {type(error).__name__} {error}\n".replace("\n", " ").strip() + "\n")


if __name__ == "__main__":
    main()
