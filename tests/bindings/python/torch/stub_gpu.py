"""A GPU without one: the plugin whose kernels run on the host (tests/libmuon/cuda), for ebb.torch.
Its memory is none of the host's, so torch has no tensors there: parameters on it are tensors of the
host with twins, which the engine is given in their place."""
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import ebb._library
import ebb.torch._description
import ebb.torch._engine
import ebb.torch._run
from ebb._device import Device
from ebb.torch._staging import Staging
from worlds import Skip, local

LATE_US = 200


def use_stub() -> str:
    """It is the plugin of this process and its children from now on. Its path."""
    library = Path(ebb._library.find()).resolve()
    plugin = library.parents[1] / "bin/ebb-cuda-stub.so"
    if not plugin.exists():
        raise Skip(f"no {plugin}: it is built where nvcc is")
    os.environ["EBB_PLUGIN"] = str(plugin)
    return str(plugin)


class Stub:
    """Memory of the device and one stream, whose work comes late, through the plugin's table."""

    NAMES = ("size", "version", "open", "close", "name", "allocate", "release", "zero", "pin",
             "unpin", "open_stream", "close_stream", "drain", "copy")

    def __init__(self, plugin: str) -> None:
        library = ctypes.CDLL(plugin)
        library.ebb_plugin.restype = ctypes.POINTER(ctypes.c_uint64)
        table = ctypes.cast(library.ebb_plugin()[2], ctypes.POINTER(ctypes.c_uint64))
        self._table = {name: table[i] for i, name in enumerate(self.NAMES)}
        self._why = ctypes.create_string_buffer(256)
        library.ebb_stub_late(LATE_US)
        self._device = self._made("open", ctypes.c_int32(0))
        self.stream = self._made("open_stream", self._device)

    def _call(self, name: str, *arguments: object) -> None:
        function = ctypes.CFUNCTYPE(ctypes.c_int32)(self._table[name])
        assert function(*arguments, self._why) == 0, (name, self._why.value)

    def _made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        answer = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(answer))
        return answer

    def memory(self, tensor: Tensor) -> int:
        size = ctypes.c_uint64(max(1, tensor.numel() * tensor.element_size()))
        return int(self._made("allocate", self._device, size).value or 0)

    def copy(self, source: int, to: int, tensor: Tensor) -> None:
        size = ctypes.c_uint64(tensor.numel() * tensor.element_size())
        self._call("copy", self._device, self.stream, ctypes.c_void_p(source), ctypes.c_void_p(to),
                   size)

    def wait(self) -> None:
        ctypes.CFUNCTYPE(None)(self._table["drain"])(self._device, self.stream)


class OnStub(Staging):
    """Parameters that lie there, with their gradients: as those of a GPU, in place."""

    stub: Stub
    twins: dict[int, int] = {}  # by the address of the host's

    def __init__(self, params: Sequence[Tensor], in_place: bool = False) -> None:
        assert in_place
        self._mine = [local(param) for param in params]
        self._there = [self.stub.memory(mine) for mine in self._mine]
        self._gradients_there = [self.stub.memory(mine) for mine in self._mine]
        super().__init__(params)

    def take(self) -> None:
        for mine, there in zip(self._mine, self._there):
            self.twins[mine.data_ptr()] = there
            self.stub.copy(mine.data_ptr(), there, mine)
        self.stub.wait()

    def gradients(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        for gradient, there in zip(given, self._gradients_there):
            if gradient is not None:
                self.twins[gradient.data_ptr()] = there
                self.stub.copy(gradient.data_ptr(), there, gradient)  # and is not waited for
        return list(given)

    def hand_out(self) -> None:
        for mine, there in zip(self._mine, self._there):
            self.stub.copy(there, mine.data_ptr(), mine)
        self.stub.wait()


def put_parameters_there(plugin: str) -> None:
    """What ebb.torch trains in this process lies there from now on."""
    OnStub.stub = Stub(plugin)
    real = ebb.torch._engine.fill

    def fill(buffer, tensor: Tensor) -> None:
        real(buffer, tensor)
        there = OnStub.twins.get(tensor.data_ptr())
        if there is not None and tensor.numel():
            buffer.data, buffer.device, buffer.stream = there, 0, OnStub.stub.stream.value

    ebb.torch._engine.fill = fill
    ebb.torch._run.Staging = OnStub
    ebb.torch._description._computing = lambda of, options: ebb.torch._engine.Computing(
        Device(0), options.device_bytes(), True)
    assert not torch.cuda.is_available()
