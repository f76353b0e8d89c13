#!/usr/bin/env python3
"""A checkpoint that is on the disk alone, into a module whose memory is touched; for
tests/bench/python.

    load.py FILE BYTES

Makes FILE, safetensors of so many bytes in fp32. Answers "ours" (ebb.open().load_into()), "theirs"
(safetensors.torch.load_model()) and "disk" (fio, past the page cache) with the seconds it took;
"same" with 1 where both loaded the same bits.
"""

import json
import os
import subprocess
import sys

import torch
from common import seconds_of, serve
from safetensors.torch import load_model, save_file

import ebb

ROWS, COLS = 2048, 4096


def module(count):
    """Of weights that differ, in memory that is touched."""
    made = torch.nn.Module()
    for i in range(count):
        made.register_parameter(f"w{i}", torch.nn.Parameter(torch.full((ROWS, COLS), float(i))))
    return made


def forget(file):
    """The kernel's copy of what it holds."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def fio(file):
    said = subprocess.run(
        ["fio", "--name=read", f"--filename={file}", "--rw=read", "--bs=4M", "--iodepth=8",
         "--ioengine=io_uring", "--direct=1", "--readonly", "--output-format=json"],
        check=True, capture_output=True, text=True, env={**os.environ, "GLIBC_TUNABLES":
                                                         "glibc.malloc.hugetlb=1"})  # fmt: skip
    return json.loads(said.stdout)["jobs"][0]["read"]["runtime"] / 1000


def main():
    file, count = sys.argv[1], max(1, int(sys.argv[2]) // (4 * ROWS * COLS))
    save_file({f"w{i}": torch.randn(ROWS, COLS) for i in range(count)}, file)
    into = module(count)

    def ours():
        with ebb.open(file) as checkpoint:
            checkpoint.load_into(into, progress=False)

    def theirs():
        load_model(into, file)

    def same():
        ours()
        mine = [p.detach().clone() for p in into.parameters()]
        theirs()
        return all(torch.equal(a, b) for a, b in zip(mine, into.parameters()))

    def measure(word):
        forget(file)
        if word == "disk":
            return [fio(file)]
        if word == "same":
            return [int(same())]
        return [seconds_of({"ours": ours, "theirs": theirs}[word])]

    serve(measure)


main()
