"""Drivers that are there are asked, those that are not are a fact; stand-ins answer as real ones do."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepgrade.cli.commands import FLAGS
from stepgrade.hardware.detect import Answer, detect, processor


def answers() -> dict[str, Answer]:
    return {answer.driver: answer for answer in detect().answers}


@pytest.fixture(autouse=True)
def _no_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pynvml", "amdsmi", "torch", "jax"):
        monkeypatch.setitem(sys.modules, module, None)


def test_nothing_installed_is_a_fact() -> None:
    assert {answer.state for answer in answers().values()} == {"absent"}
    assert "not installed" in answers()["torch"].detail


def test_the_processor_is_always_there() -> None:
    found = processor()
    assert found.name
    assert found.cores >= 1
    assert found.memory_bytes is None or found.memory_bytes > 2**20


class NVMLError(Exception):
    """As pynvml's."""


def nvml(*, count: int = 1, **answers_of: Any) -> ModuleType:
    """Return a stand-in for pynvml with the functions we call."""
    known: dict[str, Any] = {
        "nvmlDeviceGetName": "NVIDIA GeForce RTX 4060 Laptop GPU",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8_585_740_288),
        "nvmlDeviceGetMaxClockInfo": 8001,
        "nvmlDeviceGetMemoryBusWidth": 128,
        "nvmlDeviceGetEnforcedPowerLimit": 80_000,
        "nvmlDeviceGetMigMode": (0, 0),
        **answers_of,
    }
    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )
    for name, value in known.items():
        module.__dict__[name] = _replying(value)
    return module


def _replying(value: Any) -> Any:
    def reply(*_: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return reply


def test_nvidia_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    (device,) = answers()["nvidia-ml-py"].devices
    assert device.key == "rtx-4060-laptop"
    assert device.driver_bw_gb_s == pytest.approx(256.0, abs=0.1)
    assert device.power_limit_w == 80
    assert device.notes == ()


def test_a_board_with_unified_memory_answers_little(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = NVMLError("Not Supported")
    module = nvml(
        nvmlDeviceGetName="NVIDIA GB10",
        nvmlDeviceGetMemoryInfo=refused,
        nvmlDeviceGetMemoryBusWidth=refused,
        nvmlDeviceGetEnforcedPowerLimit=refused,
        nvmlDeviceGetMigMode=refused,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    (device,) = answers()["nvidia-ml-py"].devices
    assert (device.key, device.driver_bw_gb_s, device.memory_bytes) == ("gb10", None, None)


def test_no_driver_behind_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml()
    module.__dict__["nvmlInit"] = _replying(NVMLError("NVML Shared Library Not Found"))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    answer = answers()["nvidia-ml-py"]
    assert answer.state == "none"
    assert "Shared Library Not Found" in answer.detail


def test_a_device_that_is_not_in_the_catalogue_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetName=b"NVIDIA Voodoo 9"))
    (device,) = answers()["nvidia-ml-py"].devices
    assert device.key is None
    assert device.problem is not None
    assert "device_file" in device.problem
    assert "--device-file" in (detect(FLAGS).answers[0].devices[0].problem or "")


def test_a_gap_between_driver_and_catalogue_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml(nvmlDeviceGetMaxClockInfo=7001, nvmlDeviceGetMigMode=(1, 1))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    (device,) = answers()["nvidia-ml-py"].devices
    assert any("224 GB/s" in note for note in device.notes)
    assert any("MIG" in note for note in device.notes)


def test_amd_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("amdsmi")
    asic = {"market_name": "", "num_compute_units": 304, "target_graphics_version": "gfx942"}
    vram = {"vram_size": 196_592, "vram_max_bandwidth": 5300}
    module.__dict__.update(
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: [object()],
        amdsmi_get_gpu_asic_info=lambda _: asic,
        amdsmi_get_gpu_vram_info=lambda _: vram,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    (device,) = answers()["amdsmi"].devices
    assert (device.key, device.driver_bw_gb_s) == ("mi300x", 5300)


def test_torch_without_a_gpu_and_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(
        name="AMD Radeon Graphics",
        total_memory=68_702_699_520,
        multi_processor_count=104,
        major=9,
        minor=0,
        gcnArchName="gfx90a:sramecc+:xnack-",
    )
    module = ModuleType("torch")
    cuda = SimpleNamespace(
        is_available=lambda: False, device_count=lambda: 1, get_device_properties=lambda _: known
    )
    module.__dict__["cuda"] = cuda
    monkeypatch.setitem(sys.modules, "torch", module)
    assert answers()["torch"].state == "none"
    cuda.is_available = lambda: True
    (device,) = answers()["torch"].devices
    assert device.key == "mi210"


def test_jax_shows_half_a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("jax")
    found = [
        SimpleNamespace(platform="cpu", device_kind="cpu"),
        SimpleNamespace(platform="tpu", device_kind="TPU v3"),
        SimpleNamespace(platform="tpu", device_kind="TPU v4"),
    ]
    module.__dict__["devices"] = lambda: found
    monkeypatch.setitem(sys.modules, "jax", module)
    assert [device.key for device in answers()["jax"].devices] == ["tpu-v3-core", "tpu-v4"]


def test_jax_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("jax")
    module.__dict__["devices"] = _replying(RuntimeError("Unable to initialize backend\nmore"))
    monkeypatch.setitem(sys.modules, "jax", module)
    assert answers()["jax"].detail == "no device: Unable to initialize backend"
