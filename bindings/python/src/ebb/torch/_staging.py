"""Parameters that lie on a GPU. Where the engine does not take them there, gradients come down and
weights go up through pinned memory, beside what the plan counts: `bytes` of this rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._placements import local


class Staging:
    """A pinned weight and a pinned gradient for each parameter of another device. One thread,
    without gradients (torch.no_grad())."""

    def __init__(
        self, params: Sequence[Tensor], in_place: bool = False, always: bool = False
    ) -> None:
        """`in_place`: the engine takes them where they are; `always`: for those that lie here,
        too."""
        self._params, self.in_place = params, in_place
        self._weights: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        for i, param in enumerate(params):
            mine = local(param)
            if always or (mine.device.type != "cpu" and not in_place):
                self._weights[i] = _pinned_like(mine)
        devices = {local(params[i]).device for i in self._weights}
        self._streams = {d: _stream(d) for d in devices if d.type == "cuda"}
        self._going_up: list[torch.cuda.Event] = []
        self.take()

    @property
    def bytes(self) -> int:
        held = [*self._weights.values(), *self._gradients.values()]
        return sum(t.numel() * t.element_size() for t in held)

    def weight(self, i: int) -> Tensor:
        """What the engine writes: the parameter's own memory, or that which goes up."""
        return self._weights.get(i, local(self._params[i]))

    def take(self) -> None:
        """The engine will read the parameters as they are now: brings them down, or waits for what
        computes them."""
        self._wait_up()
        if self.in_place:
            for device in {local(param).device for param in self._params}:
                torch.cuda.current_stream(device).synchronize()
        for i, host in self._weights.items():
            host.copy_(local(self._params[i]))  # in its stream's order; waits

    def gradients(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Theirs in the host's memory, on streams of their own behind what computes them."""
        if not self._weights:
            return list(given)
        self._wait_up()
        for device, stream in self._streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))
        taken = [None if g is None else self._bring(i, g) for i, g in enumerate(given)]
        for stream in self._streams.values():
            stream.synchronize()
        return taken

    def _bring(self, i: int, gradient: Tensor) -> Tensor:
        if i not in self._weights:
            return gradient
        if i not in self._gradients:
            self._gradients[i] = _pinned_like(gradient)
        host = self._gradients[i]
        if gradient.device.type == "cpu":
            host.copy_(gradient)
        else:
            with torch.cuda.stream(self._streams[gradient.device]):
                host.copy_(gradient, non_blocking=True)
        return host

    def hand_out(self) -> None:
        """Sends the new weights up; what is computed next on the current stream has them."""
        for i, host in self._weights.items():
            local(self._params[i]).copy_(host, non_blocking=True)
        for device in self._streams:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._going_up.append(event)

    def _wait_up(self) -> None:
        for event in self._going_up:
            event.synchronize()
        self._going_up.clear()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _pinned_like(tensor: Tensor) -> Tensor:
    pinned = torch.cuda.is_available()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
