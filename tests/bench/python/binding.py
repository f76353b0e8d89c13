#!/usr/bin/env python3
"""What the Python of a step costs; for tests/bench/python.

    binding.py plain|dtensor COUNT EDGE WORK

A model of COUNT matrices of EDGE x EDGE, trained by Muon, its state in memory; `dtensor`: sharded
by fully_shard in a world of one. Answers "step" with: seconds of opt.step() without the C calls that
do the work (ebb_engine_gradients, begin_step, step_ended, wait_step), seconds of all of it, and how
many parameters.
"""

import sys
import time

import torch
from common import matrices, serve

import ebb.torch
from ebb import _library


class TimedLibrary:
    """The library; `seconds` were spent in the calls that do the work."""

    TIMED = tuple(f"ebb_engine_{name}" for name in
                  ("gradients", "begin_step", "step_ended", "wait_step"))

    def __init__(self, library):
        self._library, self.seconds = library, 0.0
        for name in self.TIMED:
            setattr(self, name, self._timed(getattr(library, name)))

    def _timed(self, function):
        def call(*arguments):
            began = time.perf_counter()
            status = function(*arguments)
            self.seconds += time.perf_counter() - began
            return status

        return call

    def __getattr__(self, name):
        return getattr(self._library, name)


def sharded(model, work):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{work}/world", rank=0, world_size=1)
    grads = [param.grad for param in model.parameters()]
    for param in model.parameters():
        param.grad = None
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    for param, grad in zip(model.parameters(), grads):
        param.grad = torch.distributed.tensor.DTensor.from_local(
            grad, param.device_mesh, param.placements, run_check=False
        )


def main():
    kind, count, edge, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    model = torch.nn.Module()
    for i, (_, param) in enumerate(matrices(count, edge, edge)):
        model.register_parameter(f"weight{i}", param)
    if kind == "dtensor":
        sharded(model, work)
    opt = ebb.torch.Muon(model.named_parameters(), swap=f"{work}/swap", budget="all")
    opt.step()
    timed = _library._loaded = TimedLibrary(_library.library())

    def measure(word):
        timed.seconds = 0.0
        began = time.perf_counter()
        opt.step()
        took = time.perf_counter() - began
        return took - timed.seconds, took, count

    serve(measure)


main()
