"""A model that tests train through ctypes: two matrices, on ranks that have all of them."""

from __future__ import annotations

import ctypes
import tempfile
import unittest
from ctypes import byref, c_char_p, c_float, c_uint32, c_uint64, c_void_p, sizeof

from ebb import _abi, _library

ROWS, COLUMNS = 8, 6
ELEMS = ROWS * COLUMNS
NAMES = (b"first", b"second")
Matrix = c_float * ELEMS


def matrix(seed: int) -> ctypes.Array[c_float]:
    return Matrix(*((k * 31 + seed * 17) % 29 / 29 - 0.4 for k in range(ELEMS)))


def buffers(matrices: list[ctypes.Array[c_float]]) -> ctypes.Array[_abi.Buffer]:
    each = [_abi.Buffer(ctypes.addressof(m), ELEMS, _abi.F32, -1, None) for m in matrices]
    return (_abi.Buffer * len(each))(*each)


class SmallModel:
    """What an engine needs to know, and the weights that it fills."""

    def __init__(self, world: int = 1) -> None:
        shape = (c_uint64 * 2)(ROWS, COLUMNS)
        settings = (_abi.Setting * 1)(_abi.Setting(b"lr", b"0.05"))
        group = _abi.Group(sizeof(_abi.Group), b"muon", None, settings, len(settings))
        params = (_abi.Param * len(NAMES))()
        for param, name in zip(params, NAMES):
            param.size = sizeof(param)
            param.name = name
            param.shape = shape
            param.ndim = len(shape)
        layout = _abi.Layout(size=sizeof(_abi.Layout), policy=_abi.REPLICATED, shard_world=world)
        self.described = _abi.Model(size=sizeof(_abi.Model), budget_bytes=1 << 20, tile_bytes=4096)
        self.described.params = params
        self.described.param_count = len(params)
        self.described.groups = ctypes.pointer(group)
        self.described.group_count = 1
        self.described.gradients = self.described.weights = ctypes.pointer(layout)
        self.weights = [matrix(seed) for seed in range(len(NAMES))]

    def open(self, ranks: c_void_p, directory: str) -> c_void_p:
        start = _abi.Start(size=sizeof(_abi.Start), directory=directory.encode())
        start.weights = buffers(self.weights)
        engine = c_void_p()
        _library.call("ebb_engine_open", byref(self.described), ranks, byref(start), byref(engine))
        return engine

    def values(self) -> list[list[float]]:
        return [list(weight) for weight in self.weights]


def step(engine: c_void_p, number: int) -> _abi.StepResult:
    """The number-th, with gradients that are that step's, whoever makes it."""
    numbers = (c_uint32 * len(NAMES))(*range(len(NAMES)))
    gradients = [matrix(100 * number + param) for param in numbers]
    given = buffers(gradients)
    _library.call("ebb_engine_gradients", engine, numbers, given, None, len(numbers))
    result = _abi.StepResult(size=sizeof(_abi.StepResult))
    _library.call("ebb_engine_step", engine, None, byref(result))
    return result


def alone() -> c_void_p:
    ranks = c_void_p()
    _library.call("ebb_ranks_alone", byref(ranks))
    return ranks


def listen() -> tuple[c_void_p, str]:
    """A listener, and the address that the other ranks need."""
    listener, address = c_void_p(), c_void_p()
    _library.call("ebb_listener_open", None, byref(listener), byref(address))
    return listener, _library.text(address)


def connect(
    listener: c_void_p, rank: int, addresses: list[str], limit_ms: int = 20_000
) -> c_void_p:
    lines = (c_char_p * len(addresses))(*(address.encode() for address in addresses))
    ranks = c_void_p()
    _library.call(
        "ebb_ranks_connect", listener, rank, len(addresses), lines, limit_ms, byref(ranks)
    )
    return ranks


class EngineCase(unittest.TestCase):
    """A swap directory for each test, and a world of one."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.models: list[SmallModel] = []  # that engines write to
        self.ranks = alone()
        self.addCleanup(_library.call, "ebb_ranks_close", self.ranks)

    def opened(self, model: SmallModel) -> c_void_p:
        """An engine that the test closes, or that is closed behind it."""
        self.models.append(model)
        engine = model.open(self.ranks, self.directory)
        self.addCleanup(_library.library().ebb_engine_close, engine)
        return engine
