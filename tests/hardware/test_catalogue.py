"""Every device is found by what people, drivers and traces call it, or refused with the nearest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade.hardware
from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import (
    BYTES_PER_GIB,
    all_devices,
    compute_units,
    find_device,
    fold,
    identify,
    keys_called,
    memory_sizes_gb,
    part_of,
    parts,
)
from stepgrade.model import DeviceSeen
from tests.samples import shared

TABLE = Path(stepgrade.hardware.__file__).with_name("accelerators.csv")
COUNTED = [key for key in all_devices() if compute_units(key) is not None]


def test_every_row_and_every_figure_is_there() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(all_devices()) == len(rows) == 183
    for row in rows:
        device = all_devices()[row["key"]]
        assert device.name == row["name"]
        assert device.peak_bw_gb_s == float(row["peak_bw_gb_s"])
        for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8"):
            assert device.peak_tflops.get(dtype) == (float(row[f"{dtype}_tflops"] or 0) or None)
        assert device.peak_tflops.get("int8") == (float(row["int8_tops"] or 0) or None)
        assert device.achievable_tflops.get("bf16") == (float(row["mamf_bf16_tflops"] or 0) or None)
        assert device.link_gb_s == (float(row["interconnect_gb_s"] or 0) or None)
        assert device.source
        assert device.confidence


@pytest.mark.samples
def test_the_table_is_the_shared_one() -> None:
    """Figure for figure; words may be put better here, and devices and names be added."""
    ours, known = (
        {row["key"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}
        for path in (TABLE, shared("hardware/accelerators.csv"))
    )
    for key, theirs in known.items():
        words = {"source", "confidence", "notes", "aliases"}
        assert {k: ours[key][k] for k in theirs if k not in words} == {
            k: v for k, v in theirs.items() if k not in words
        }
        assert set(theirs["aliases"].split(";")) <= set(ours[key]["aliases"].split(";"))


def test_figures_are_dense_and_make_sense() -> None:
    for device in all_devices().values():
        assert all(peak > 0 for peak in device.peak_tflops.values())
        assert device.peak_bw_gb_s is not None
        assert 10 < device.peak_bw_gb_s < 10_000
        for dtype, rate in device.achievable_tflops.items():
            assert rate < device.peak_tflops[dtype]


def test_every_key_finds_itself() -> None:
    for key in (*all_devices(), *parts()):
        assert find_device(key).key == key


def test_every_alias_finds_its_device_or_says_which_it_could_be() -> None:
    for device in all_devices().values():
        for alias in device.aliases:
            assert device.key in keys_called(alias)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("rtx_4060l", "rtx-4060-laptop"),
        ("gb10", "gb10"),
        ("H100-SXM5-80GB", "h100-sxm5-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("nvidia geforce rtx 4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200-sxm"),
        ("Intel Arc A770 Graphics", "arc-a770"),
        ("TPU v5 lite", "tpu-v5e"),
        ("mi250x-gcd", "mi250x-gcd"),
    ],
)
def test_names_people_use(name: Any, key: Any) -> None:
    assert find_device(name).key == key


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("h100", "h100-sxm5-80gb"), ("rtx4091", "rtx-4090"), ("Tesla V100-SXM9-32GB", "v100-sxm2-32gb")],
)
def test_an_unknown_name_gets_the_nearest_and_what_to_give(name: Any, nearest: Any) -> None:
    with pytest.raises(UnknownDevice) as error:
        find_device(name)
    assert nearest in str(error.value)
    for field in ("peak_bw_gb_s", "peak_tflops", "device_file"):
        assert field in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["AMD Instinct MI250X / MI250", "NVIDIA H100", "AMD Radeon Graphics", ""])
def test_a_name_of_several_devices_is_refused(name: Any) -> None:
    with pytest.raises(UnknownDevice):
        find_device(name)


# As real traces have them: deviceProperties' name, totalGlobalMem, numSms.
SEEN = [
    ("NVIDIA A100-PG509-200", 42_297_524_224, 108, "a100-sxm4-40gb"),
    ("NVIDIA H100", 102_085_492_736, 132, "h100-sxm5-96gb-hbm2e"),
    ("NVIDIA H100 80GB HBM3", 85_028_372_480, 132, "h100-sxm5-80gb"),
    ("", 206_141_652_992, 304, "mi300x"),
    ("AMD Radeon Graphics", 68_702_699_520, 104, "mi210"),
    ("AMD Instinct MI210", 68_702_699_520, 104, "mi210"),
    ("NVIDIA B200", 191_503_138_816, 148, "b200"),
    ("Tesla V100-SXM2-32GB", 34_079_637_504, 80, "v100-sxm2-32gb"),
    ("Tesla P100-PCIE-16GB", 17_071_734_784, 56, "p100-pcie-16gb"),
    ("NVIDIA A100-PCIE-40GB", 42_346_610_688, 108, "a100-pcie-40gb"),
    ("NVIDIA GeForce RTX 3060", 12 * 2**30 - 10**8, 28, "rtx-3060"),
    ("NVIDIA GeForce RTX 4060 Ti", 8 * 2**30, 34, "rtx-4060-ti"),
    ("AMD Instinct MI250X", 68_702_699_520, 110, "mi250x-gcd"),
    ("Apple M4 Max", 36 * 2**30, None, "m4-max"),
    ("NVIDIA GB10", None, 48, "gb10"),
    # As clouds show them: a T4 of Colab, an A10G of AWS with ECC, an L4 of Google, a workstation with ECC.
    ("Tesla T4", 15_642_329_088, 40, "t4"),
    ("NVIDIA A10G", 23_609_475_072, 80, "a10g"),
    ("NVIDIA L4", 23_034_789_888, 58, "l4"),
    ("NVIDIA RTX A5000", 23_679_729_664, 64, "rtx-a5000"),
    ("Tesla V100-DGXS-32GB", 34_085_306_368, 80, "v100-dgxs-32gb"),
    ("Tesla V100-DGXS-16GB", 16_945_512_448, 80, "v100-dgxs-32gb"),
    ("NVIDIA PG509-210", 85_198_045_184, 108, "a100-sxm4-80gb"),
    ("Quadro GP100", 17_066_885_120, 56, "quadro-gp100"),
    ("NVIDIA GeForce RTX 2070", 8_589_410_304, 36, "rtx-2070"),
    ("NVIDIA GeForce GTX 1650", 4_294_639_616, 14, "gtx-1650"),
    ("GeForce GTX 1070", 8_513_978_368, 15, "gtx-1070"),
    ("NVIDIA GeForce RTX 3050 Laptop GPU", 4_294_508_544, 16, "rtx-3050-laptop"),
    ("NVIDIA TITAN X (Pascal)", 12_787_122_176, 28, "titan-x-pascal"),
    ("NVIDIA A2", 15_846_408_192, 10, "a2"),
    # Of no trace at hand: sizes a little below the nominal one, as the others have them.
    ("Tesla K80", 11_996_954_624, 13, "k80"),
    ("Tesla V100-SXM3-32GB", 34_089_730_048, 80, "v100-sxm3-32gb"),
    ("NVIDIA GeForce RTX 3080", 12_620_464_128, 70, "rtx-3080-12gb"),
    ("NVIDIA GeForce RTX 3080", 10_501_619_712, 68, "rtx-3080"),
]


@pytest.mark.parametrize(("name", "memory", "units", "key"), SEEN)
def test_devices_as_traces_give_them(name: Any, memory: Any, units: Any, key: Any) -> None:
    seen = DeviceSeen(name=name, memory_bytes=memory, sm_count=units)
    assert identify(seen).key == key


@pytest.mark.parametrize(
    ("name", "memory", "units", "says"),
    [
        ("NVIDIA GeForce RTX 3060", 8 * 2**30, 28, "rtx-3060 has 12 GB"),
        ("NVIDIA GeForce RTX 3080", 12 * 2**30, 68, "rtx-3080 has 10 GB and 68 compute units"),
        ("NVIDIA A100-SXM4-40GB", 5 * 2**30, 14, "does not match the catalogue"),
        ("AMD Radeon Graphics", 16 * 2**30, 40, "matches no device"),
        ("AMD Radeon Graphics", None, None, "matches no device"),
        ("", None, None, "a device without a name"),
        ("NVIDIA H100", None, 132, "name of several devices"),
        ("AMD Instinct MI250X / MI250", 128 * 2**30, None, "could be any of mi250, mi250x"),
        ("Voodoo 2", 12 * 2**20, 3, "no device called 'Voodoo 2'"),
    ],
)
def test_what_fits_none_or_several_is_refused(name: Any, memory: Any, units: Any, says: Any) -> None:
    with pytest.raises(UnknownDevice) as error:
        identify(DeviceSeen(name=name, memory_bytes=memory, sm_count=units))
    assert says in str(error.value)


def test_an_architecture_settles_a_name_that_says_nothing() -> None:
    seen = DeviceSeen(name="AMD Radeon Graphics", memory_bytes=96 * 2**30, sm_count=20)
    assert identify(seen, "gfx1151").key == "strix-halo-8060s"


def test_a_part_has_its_share_of_the_whole() -> None:
    found = part_of("mi250x")
    assert found is not None
    part, count = found
    assert count == 2
    assert part.peak_bw_gb_s == 3276.8 / 2
    assert part.peak_tflops["bf16"] == 191.5
    assert part_of("h100-pcie") is None


def test_the_tables_of_units_name_devices_that_exist() -> None:
    assert len(COUNTED) == 95
    assert compute_units("mi250x-gcd") == 110
    assert compute_units("no such device") is None
    assert memory_sizes_gb(all_devices()["rtx-4060-ti"]) == (8, 16)
    assert memory_sizes_gb(all_devices()["m4-max"]) == ()
    assert memory_sizes_gb(all_devices()["t4"]) == (16,)


def test_compute_units_fit_the_peaks() -> None:
    """A wrong count would mean a clock that no such card has."""
    for key in COUNTED:
        device, units = all_devices()[key], compute_units(key) or 0
        if device.vendor == "NVIDIA":
            lanes = 64 if device.arch in ("sm_60", "sm_70", "sm_75", "sm_80") else 128
            clock_ghz = device.peak_tflops["fp32"] * 1e3 / (units * lanes * 2)
            assert 1.0 < clock_ghz < 2.8, key  # a P4, of 75 W, has 1.06


@given(st.text(max_size=40))
def test_any_name_is_found_or_refused(name: Any) -> None:
    try:
        device = find_device(name)
    except UnknownDevice:
        return
    assert fold(name)
    assert device.key in all_devices() or device.key in parts()


@given(st.sampled_from(sorted(COUNTED)), st.floats(0.93, 1.0))
def test_every_device_with_its_own_memory_is_itself_or_ambiguous(key: Any, share: Any) -> None:
    device = all_devices()[key]
    for alias in device.aliases:
        if alias.startswith("("):
            continue
        memory = int((device.memory_gb or 0) * BYTES_PER_GIB * share)
        seen = DeviceSeen(name=alias.split(" (")[0], memory_bytes=memory, sm_count=compute_units(key))
        assert identify(seen).key == key
