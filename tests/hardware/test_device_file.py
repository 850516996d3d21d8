"""A device described by hand: what is right is taken, what is wrong is named by its field."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrade.errors import BadInput
from stepgrade.hardware.catalogue import read_device

WHOLE = """
key = "my-card"
name = "My card"
memory_gb = 24
peak_bw_gb_s = 900.5
link_gb_s = 32
source = "its data sheet"

[peak_tflops]
bf16 = 120
fp32 = 30

[achievable_tflops]
bf16 = 90
"""


def written(tmp_path: Any, text: Any) -> str:
    path = tmp_path / "my.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_whole_device(tmp_path: Any) -> None:
    device = read_device(written(tmp_path, WHOLE))
    assert (device.key, device.peak_bw_gb_s, device.link_gb_s) == ("my-card", 900.5, 32)
    assert device.peak_tflops == {"bf16": 120, "fp32": 30}
    assert device.achievable_tflops == {"bf16": 90}
    assert device.is_by_hand


def test_the_least_that_will_do(tmp_path: Any) -> None:
    device = read_device(written(tmp_path, 'name = "x"\npeak_bw_gb_s = 100'))
    assert device.key == "x"
    assert device.source.endswith("my.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "missing required field `name`"),
        ('name = "x"', "no ceiling to grade against"),
        ('name = ""\npeak_bw_gb_s = 1', "name: expected `str` of length >= 1"),
        ('name = "x"\npeak_bw_gb_s = "fast"', "peak_bw_gb_s: expected `float | null`, got `str`"),
        ('name = "x"\npeak_bw_gb_s = -1', "peak_bw_gb_s: expected `float` > 0.0"),
        ('name = "x"\npeak_bw_gb_s = nan', "has nan where a number is needed: peak_bw_gb_s"),
        ('name = "x"\npeak_bw_gb_s = true', "peak_bw_gb_s: expected `float | null`, got `bool`"),
        ('name = "x"\npeak_bw_gb_s = 1e12', "peak_bw_gb_s: expected `float` < 10000000.0"),
        ('name = "x"\nbandwidth = 1', "unknown field `bandwidth`"),
        ('name = "x"\npeak_tflops = 3', "peak_tflops: expected `object`, got `int`"),
        ('name = "x"\n[peak_tflops]\nbf17 = 3', "peak_tflops: expected `str` matching regex"),
        ("name = ", "is not valid TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"#" * (2**20 + 2), "more than 256 KiB"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Any, text: Any, says: Any) -> None:
    with pytest.raises(BadInput) as error:
        read_device(written(tmp_path, text))
    assert says in str(error.value)
    assert error.value.exit_code == 2


def test_a_file_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_device(str(tmp_path / "none.toml"))
