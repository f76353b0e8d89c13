"""An engine, as ebb.h has it, for tensors: descriptions become arrays, tensors become addresses.
Nothing here knows what an optimizer is. Threads: as ebb.h says of a handle."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ebb import _abi, _library
from ebb._device import Device
from ebb._memory import is_plain, why_not
from ebb.errors import Unsupported, UsageError

from ._placements import Box, Cut, Part

_NO_BUDGET = (1 << 63) - 1
_DEFAULT_STREAM = 1  # cudaStreamLegacy, torch's 0
DTYPES = {torch.float32: _abi.F32, torch.bfloat16: _abi.BF16}


@dataclass(frozen=True)
class Param:
    name: str
    shape: tuple[int, ...]
    group: int
    dtype: torch.dtype  # of the gradient and the weight


@dataclass(frozen=True)
class Plan:
    """Bytes of this rank; read, written and sent are one step's. least_budget: what is too little
    for is refused. ranks: beside the budget, on the way between processes. device: of a GPU that
    computes."""

    state: int
    memory: int
    ranks: int
    least_budget: int
    disk: int
    read: int
    written: int
    sent: int
    device: int = 0


@dataclass(frozen=True)
class Computing:
    """On which GPU, within so many bytes of its memory, 0: without a limit; whether all parameters
    lie there."""

    device: Device
    budget: int
    parameters: bool


@dataclass
class Description:
    """What is trained, cut over ranks. `groups`: "muon" or "adamw", a preset or None,
    settings as a store names them. computing: None: the host."""

    params: list[Param]
    groups: list[tuple[str, str | None, dict[str, str]]]
    cut: Cut
    on_shards: bool
    tile: int
    chunk: int
    slots: int
    drop_unknown: bool
    threads: int
    dtypes: dict[str, str] = field(default_factory=dict)
    computing: Computing | None = None


def text_settings(settings: dict[str, str], keep: list[Any]) -> Any:
    array = (_abi.Setting * max(1, len(settings)))()
    for one, (key, value) in zip(array, settings.items()):
        one.key, one.value = key.encode(), value.encode()
    keep.append(array)
    return array


class Model:
    """The C struct of a description, and all that it leads to. Without a limit to its bytes."""

    def __init__(self, of: Description) -> None:
        self._keep: list[Any] = []
        self.of = of
        self.struct = _abi.Model(size=ctypes.sizeof(_abi.Model))
        model = self.struct
        model.params, model.param_count = self._params(), len(of.params)
        model.groups, model.group_count = self._groups(), len(of.groups)
        whole = not of.cut.axes and of.cut.shards is None
        layout = self._layout(
            _abi.REPLICATED if whole or of.cut.axes else _abi.ROWS,
            of.cut.copies if whole else of.cut.shards or 0,
            1 if whole else of.cut.copies,
        )
        model.gradients = model.weights = layout
        self._add_axes(model)
        model.placement = _abi.ON_SHARDS if of.on_shards else _abi.AT_OWNERS
        model.hand_in = _abi.REDUCED
        model.budget_bytes, model.tile_bytes, model.chunk_bytes = _NO_BUDGET, of.tile, of.chunk
        model.slots, model.threads = of.slots, of.threads
        model.drop_unknown = int(of.drop_unknown)
        model.dtypes, model.dtype_count = text_settings(of.dtypes, self._keep), len(of.dtypes)
        if of.computing is not None:
            model.device = of.computing.device.handle
            model.device_budget_bytes = of.computing.budget
            model.gradients_on_device = model.weights_on_device = int(of.computing.parameters)

    def within(self, budget: int) -> Model:
        """The same, in so many bytes."""
        self.struct.budget_bytes = budget
        return self

    def plan(self, rank: int, world: int) -> Plan:
        """What an engine of it will take; an error where opening one would be one."""
        plan = _abi.Plan(size=ctypes.sizeof(_abi.Plan))
        _library.call("ebb_model_plan", ctypes.byref(self.struct), rank, world, ctypes.byref(plan))
        return Plan(
            plan.state_bytes, plan.memory_bytes, plan.ranks_bytes, plan.least_budget_bytes,
            plan.disk_bytes, plan.step_read_bytes, plan.step_written_bytes, plan.step_sent_bytes,
            plan.device_bytes,
        )  # fmt: skip

    def boxes(self, rank: int, world: int, param: int) -> list[Box]:
        """What a rank holds of a parameter."""
        ndim, count = len(self.of.params[param].shape), 64
        numbers = ctypes.c_uint64 * (ndim * count)
        offsets, extents = numbers(), numbers()
        boxes = ctypes.c_uint32(count)
        _library.call(
            "ebb_model_pieces", ctypes.byref(self.struct), rank, world, _abi.WEIGHTS, param,
            offsets, extents, ctypes.byref(boxes),
        )  # fmt: skip
        return [
            (tuple(offsets[i * ndim : (i + 1) * ndim]), tuple(extents[i * ndim : (i + 1) * ndim]))
            for i in range(min(boxes.value, count))
        ]

    def _params(self) -> Any:
        array = (_abi.Param * max(1, len(self.of.params)))()
        for one, param in zip(array, self.of.params):
            shape = (ctypes.c_uint64 * max(1, len(param.shape)))(*param.shape)
            self._keep.append(shape)
            one.size, one.name = ctypes.sizeof(_abi.Param), param.name.encode()
            one.shape, one.ndim, one.group = shape, len(param.shape), param.group
            one.gradient_dtype = one.weight_dtype = DTYPES[param.dtype]
            if self.of.cut.axes:
                self._cut_param(one, self.of.cut.parts[param.name])
        self._keep.append(array)
        return array

    def _cut_param(self, one: Any, part: Part) -> None:
        one.partition = _partition_name(part)
        cuts = (_abi.OnAxis * max(1, len(part.cuts)))()
        for cut, (axis, dim) in zip(cuts, part.cuts):
            cut.axis, cut.number = axis.encode(), dim
        self._keep.append(cuts)
        one.cuts, one.cut_count = cuts, len(part.cuts)

    def _groups(self) -> Any:
        array = (_abi.Group * max(1, len(self.of.groups)))()
        for one, (optimizer, preset, settings) in zip(array, self.of.groups):
            one.size, one.optimizer = ctypes.sizeof(_abi.Group), optimizer.encode()
            one.preset = preset.encode() if preset is not None else None
            one.settings = text_settings(settings, self._keep)
            one.setting_count = len(settings)
        self._keep.append(array)
        return array

    def _layout(self, policy: int, shards: int, copies: int) -> Any:
        layout = _abi.Layout(size=ctypes.sizeof(_abi.Layout), policy=policy)
        layout.shard_world, layout.replicas = shards, copies
        self._keep.append(layout)
        return ctypes.pointer(layout)

    def _add_axes(self, model: Any) -> None:
        cut = self.of.cut
        axes = (_abi.Axis * max(1, len(cut.axes)))()
        for axis, (name, ranks) in zip(axes, cut.axes):
            axis.name, axis.ranks = name.encode(), ranks
        parts = sorted({_shape_of(part) for part in cut.parts.values()})
        array = (_abi.Partition * max(1, len(parts)))()
        for one, (rows, copies) in zip(array, parts):
            one.size, one.name = ctypes.sizeof(_abi.Partition), _partition_text(rows, copies)
            one.gradients = one.weights = self._layout(
                _abi.ROWS if rows else _abi.REPLICATED, 0, 0
            )
            one.shards, one.shard_count = self._texts(rows)
            one.copies, one.copy_count = self._texts(copies)
        self._keep += [axes, array]
        model.axes, model.axis_count = axes, len(cut.axes)
        model.partitions, model.partition_count = array, len(parts)

    def _texts(self, texts: Sequence[str]) -> tuple[Any, int]:
        array = (ctypes.c_char_p * max(1, len(texts)))(*[text.encode() for text in texts])
        self._keep.append(array)
        return array, len(texts)


def _shape_of(part: Part) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return part.rows, part.copies


def _partition_text(rows: tuple[str, ...], copies: tuple[str, ...]) -> bytes:
    text = f"rows over {' '.join(rows) or 'none'}, copies over {' '.join(copies) or 'none'}"
    return text.encode()


def _partition_name(part: Part) -> bytes:
    return _partition_text(*_shape_of(part))


@dataclass(frozen=True)
class Start:
    """What an engine begins from. begin: _abi.STORE_OR_GIVEN, STORE or GIVEN."""

    directory: str
    begin: int
    checkpoint: str | None = None
    sources: tuple[str, ...] = ()
    expected_step: int | None = None
    expected_store: str | None = None
    expected_generation: int | None = None


def fill(buffer: Any, tensor: torch.Tensor) -> None:
    """A buffer's address and size become the tensor's, whose memory the caller keeps. On a GPU it
    is there behind what torch's current stream was given."""
    elems = tensor.numel()
    buffer.data, buffer.elems = (tensor.data_ptr() if elems else None), elems
    buffer.dtype, buffer.device, buffer.stream = DTYPES[tensor.dtype], -1, None
    if tensor.device.type == "cuda":
        buffer.device = tensor.device.index
        buffer.stream = torch.cuda.current_stream(tensor.device).cuda_stream or _DEFAULT_STREAM


def check_tensor(name: str, tensor: torch.Tensor, planned: bool = False) -> None:
    """Of what Ebb takes: Unsupported, TypeError or ValueError name what it is not. `planned`: it
    need not be there yet."""
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} is {tensor.dtype}: Ebb takes float32 and bfloat16")
    if planned and tensor.is_meta:
        return
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"{name} lies on {tensor.device}: Ebb takes what is on the host or CUDA")
    why = why_not(tensor)
    if why:
        raise Unsupported(f"{name} {why}: Ebb takes tensors that have memory of their own")
    if not is_plain(tensor):
        raise ValueError(
            f"{name} is not contiguous in memory, row by row: p.data = p.data.contiguous()"
        )


class Engine:
    """An open engine. Its methods are ebb.h's functions of the same names; [C] as there."""

    def __init__(self, model: Model, ranks: int, start: Start, weights: Sequence[torch.Tensor]):
        self._model = model  # the C side has read it, but for the names in errors
        self._count = len(weights)
        self._all = (ctypes.c_uint32 * max(1, self._count))(*range(self._count))
        self._gradients = (_abi.Buffer * max(1, self._count))()
        self._gradient = list(self._gradients)[: self._count]  # the same memory, one by one
        self._kinds = (ctypes.c_uint8 * max(1, self._count))()
        self._handed_in: list[int | None] | None = None  # where those of a refused step lie
        self._handle = ctypes.c_void_p()
        given = _abi.Start(size=ctypes.sizeof(_abi.Start), begin=start.begin)
        given.directory = start.directory.encode()
        given.checkpoint = start.checkpoint.encode() if start.checkpoint else None
        sources = (ctypes.c_char_p * max(1, len(start.sources)))(
            *[source.encode() for source in start.sources]
        )
        given.sources, given.source_count = sources, len(start.sources)
        if start.expected_step is not None:
            given.expected_step = start.expected_step + 1
        if start.expected_store is not None:
            given.expected_store = start.expected_store.encode()
        if start.expected_generation is not None:
            given.expected_generation = start.expected_generation + 1
        buffers = (_abi.Buffer * max(1, self._count))()
        for buffer, weight in zip(buffers, weights):
            fill(buffer, weight)
        for buffer, weight in zip(self._gradient, weights):
            fill(buffer, weight)  # but for the address: that of a step
        self._on_gpu = any(buffer.stream for buffer in self._gradient)
        given.weights = buffers
        _library.call(
            "ebb_engine_open", ctypes.byref(model.struct), ranks, ctypes.byref(given),
            ctypes.byref(self._handle),
        )  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        _library.call(f"ebb_engine_{name}", self._handle, *arguments)

    def close(self) -> None:
        self._call("close")

    def bind(self, param: int, weight: torch.Tensor) -> None:
        buffer = _abi.Buffer()
        fill(buffer, weight)
        self._call("bind", ctypes.byref(ctypes.c_uint32(param)), ctypes.byref(buffer), 1)

    def install_weights(self) -> None:
        self._call("install_weights")

    def take_weights(self) -> None:
        self._call("take_weights", self._all, self._count)

    def set(self, group: int, key: str, value: float) -> None:
        self._call("set", group, key.encode(), value)

    def begin_step(
        self, gradients: Sequence[torch.Tensor | None], inv_scale: float, max_norm: float
    ) -> None:
        """[C] A step with a gradient for each parameter, of its weight's type and size; None: it
        has none and stays as it is. They are borrowed until it has ended. After a StateError before
        anything moved the same gradients, in the same memory, can be stepped again."""
        places = [None if gradient is None else gradient.data_ptr() for gradient in gradients]
        if places != self._handed_in:
            self._hand_in(gradients, places)
            self._handed_in = places
        args = _abi.StepArgs(ctypes.sizeof(_abi.StepArgs), inv_scale, max_norm)
        try:
            self._call("begin_step", ctypes.byref(args), None)
        except UsageError:  # may have forgotten them
            self._handed_in = None
            raise
        self._handed_in = None

    def _hand_in(
        self, gradients: Sequence[torch.Tensor | None], places: list[int | None]
    ) -> None:
        self._kinds[: self._count] = [
            _abi.NONE_UNTOUCHED if place is None else _abi.GRADIENT for place in places
        ]
        for buffer, gradient, place in zip(self._gradient, gradients, places):
            if not self._on_gpu:
                buffer.data = place
            elif gradient is not None:
                fill(buffer, gradient)  # behind the stream that is the current one now
        self._call("gradients", self._all, self._gradients, self._kinds, self._count)

    def step_ended(self, limit_ms: int) -> bool:
        ended = ctypes.c_int32()
        self._call("step_ended", limit_ms, ctypes.byref(ended))
        return ended.value != 0

    def wait_step(self) -> Any:
        """[C] The C struct of results."""
        return self._result("wait_step")

    def continue_step(self) -> Any:
        """[C] Of a step that was stopped."""
        return self._result("continue")

    def _result(self, call: str) -> Any:
        result = _abi.StepResult(size=ctypes.sizeof(_abi.StepResult))
        self._call(call, ctypes.byref(result))
        return result

    def abandon(self) -> None:
        self._call("abandon")

    def save_to(self, directory: str) -> None:
        self._call("save_to", directory.encode())

    def read_states(
        self, states: Sequence[str], params: Sequence[int], into: Sequence[Sequence[torch.Tensor]]
    ) -> None:
        """`into`: by state, by parameter."""
        self._call("read_states", *self._named(states, params, into))

    def write_states(
        self, states: Sequence[str], params: Sequence[int], of: Sequence[Sequence[torch.Tensor]],
        taken: int | None,
    ) -> None:  # fmt: skip
        count = -1 if taken is None else taken
        self._call("write_states", *self._named(states, params, of), count)

    def _named(
        self, states: Sequence[str], params: Sequence[int],
        tensors: Sequence[Sequence[torch.Tensor]],
    ) -> tuple[Any, ...]:  # fmt: skip
        names = (ctypes.c_char_p * len(states))(*[state.encode() for state in states])
        numbers = (ctypes.c_uint32 * len(params))(*params)
        buffers = (_abi.Buffer * (len(states) * len(params)))()
        for buffer, tensor in zip(buffers, (one for some in tensors for one in some)):
            fill(buffer, tensor)
        return names, len(states), numbers, buffers, len(params)

    def snapshot(self) -> bool:
        begun = ctypes.c_int32()
        self._call("snapshot", ctypes.byref(begun))
        return begun.value != 0

    def wait_snapshot(self) -> int:
        generation = ctypes.c_uint64()
        self._call("wait_snapshot", ctypes.byref(generation))
        return generation.value

    def committed(self) -> tuple[int, int]:
        """Generation and step; raises the error of a snapshot that was abandoned."""
        generation, step = ctypes.c_uint64(), ctypes.c_uint64()
        self._call("committed", ctypes.byref(generation), ctypes.byref(step))
        return generation.value, step.value

    def about(self) -> dict[str, Any]:
        return self._json("about")

    def stats(self) -> dict[str, Any]:
        return self._json("stats")

    def _json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._text(name))
        return found

    def _text(self, name: str) -> str:
        text = ctypes.c_void_p()
        self._call(name, ctypes.byref(text))
        return _library.text(text)

    def begin_trace(self) -> None:
        self._call("begin_trace")

    def end_trace(self) -> str:
        return self._text("end_trace")

    def pin(self) -> int:
        """The committed generation, as a handle for pinned_write and pinned_close."""
        pinned = ctypes.c_void_p()
        self._call("pin", ctypes.byref(pinned))
        return int(pinned.value or 0)

    def set_blob(self, key: str, value: bytes) -> None:
        self._call("set_blob", key.encode(), value, len(value))

    def blob(self, key: str) -> bytes | None:
        size = ctypes.c_uint64()
        self._call("blob", key.encode(), None, ctypes.byref(size))
        if size.value == 0:
            return None
        room = ctypes.create_string_buffer(size.value)
        self._call("blob", key.encode(), room, ctypes.byref(size))
        return room.raw[: size.value]
