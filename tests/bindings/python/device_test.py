"""A device that computes, through ctypes: the plugin whose kernels run on the host (EBB_PLUGIN)."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from ctypes import byref, sizeof
from unittest import mock

import ebb
from ebb import _abi, _device, _library
from small_model import EngineCase, SmallModel, step

STEPS = 3
PLUGIN = os.environ["EBB_PLUGIN"]


class Device(EngineCase):
    def trained(self, place: str, device: _device.Device | None, **fields: object) -> list[float]:
        """Weights behind some steps, one after the other."""
        model = SmallModel()
        if device is not None:
            model.described.device = device.handle
        for name, value in fields.items():
            setattr(model.described, name, value)
        engine = model.open(self.ranks, f"{self.directory}/{place}")
        for number in range(STEPS):
            step(engine, number)
        _library.call("ebb_engine_close", engine)
        return [value for weight in model.values() for value in weight]

    def test_it_steps_near_to_the_host_and_alike_wherever_state_lies(self) -> None:
        device = _device.Device(0)
        self.assertEqual(device.name, "Stub 0")
        there = self.trained("there", device)
        for one, other in zip(there, self.trained("host", None)):
            self.assertAlmostEqual(one, other, delta=1e-5)
        homes = (_abi.Setting * 2)((b"master", b"device"), (b"momentum_buffer", b"device"))
        self.assertEqual(self.trained("home", device, tiers=homes, tier_count=2), there)

    def test_its_budget_is_a_limit(self) -> None:
        device = _device.Device(0)
        model = SmallModel()
        model.described.device = device.handle
        plan = _abi.Plan(size=sizeof(_abi.Plan))
        _library.call("ebb_model_plan", byref(model.described), 0, 1, byref(plan))
        self.assertGreater(plan.device_bytes, 0)
        model.described.device_budget_bytes = plan.device_bytes - 1
        with self.assertRaisesRegex(ebb.NoMemory, "bytes of the device is too small"):
            _library.call("ebb_model_plan", byref(model.described), 0, 1, byref(plan))

    def test_an_engine_keeps_it(self) -> None:
        device = _device.Device(0)
        model = SmallModel()
        model.described.device = device.handle
        engine = self.opened(model)
        del device
        self.assertEqual(step(engine, 0).step, 1)

    def test_none_is_an_error_that_says_what_to_do(self) -> None:
        with self.assertRaisesRegex(ebb.Unsupported, "there is no device 7, there are 2"):
            _device.Device(7)
        with mock.patch.dict(os.environ, EBB_PLUGIN="/nowhere/ebb-cuda.so"):
            with self.assertRaisesRegex(ebb.IoError, "cannot load the plugin /nowhere/") as caught:
                _device.Device(0)
        self.assertIn("LD_LIBRARY_PATH", str(caught.exception.hint))
        with mock.patch.dict(os.environ, EBB_PLUGIN="libc.so.6"):
            with self.assertRaisesRegex(ebb.Unsupported, "is no plugin") as refused:
                _device.Device(0)
        self.assertIn("./dev build cuda", str(refused.exception.hint))

    def test_python_m_ebb_says_which_it_is_and_what_for(self) -> None:
        self.assertEqual(ebb.about()["plugin"], PLUGIN)
        for plugin, wanted in (
            (PLUGIN, f"plugin {PLUGIN}: Stub 0 (computes steps where device_budget= is given)"),
            ("libc.so.6", "plugin libc.so.6, which is of no use here: steps are computed on the"),
        ):
            run = subprocess.run(
                [sys.executable, "-m", "ebb"], env={**os.environ, "EBB_PLUGIN": plugin},
                capture_output=True, text=True,
            )  # fmt: skip
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertIn(wanted, " ".join(run.stdout.split()))


if __name__ == "__main__":
    unittest.main()
