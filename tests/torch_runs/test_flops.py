"""FLOPs of real PyTorch runs, against PyTorch's own counter, and the places of settings against its schemas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.costs.patterns import BatchedAttention, Convolution
from stepgrade.costs.table import RULES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
flop_counter = pytest.importorskip("torch.utils.flop_counter")
nn, functional = torch.nn, torch.nn.functional


def profiled(path: Path, run: Callable[[], Any]) -> sg.Profile:
    """Return the profile of `run`, recorded with shapes on the processor."""
    run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as recorded:
        run()
    recorded.export_chrome_trace(str(path / "run.json"))
    return sg.load(path / "run.json")


def counted(run: Callable[[], Any]) -> int:
    with flop_counter.FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def trained(module: Any, *sizes: int) -> Callable[[], Any]:
    """Return a forward and a backward pass of the module, with a gradient for its input too."""
    torch.manual_seed(0)
    data = torch.randn(*sizes, requires_grad=True)
    return lambda: module(data).sum().backward()


CONVOLUTIONS = {
    "1d": trained(nn.Conv1d(6, 8, 5, stride=2, padding=1), 2, 6, 40),
    "2d": trained(nn.Conv2d(6, 8, 3, padding=1), 2, 6, 20, 20),
    "2d, no bias": trained(nn.Conv2d(6, 8, 3, stride=2, bias=False), 2, 6, 21, 21),
    "2d, dilated": trained(nn.Conv2d(6, 8, 3, dilation=2), 2, 6, 20, 20),
    "3d": trained(nn.Conv3d(3, 4, 3), 2, 3, 9, 9, 9),
    "transposed": trained(nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), 2, 6, 10, 10),
    "transposed 1d": trained(nn.ConvTranspose1d(6, 4, 4, stride=2), 2, 6, 10),
}
GROUPED = {
    "grouped": (nn.Conv2d(6, 12, 3, groups=3), (2, 6, 20, 20)),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8, padding=1), (2, 8, 20, 20)),
    "transposed": (nn.ConvTranspose2d(6, 6, 3, groups=3), (2, 6, 10, 10)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_count_as_pytorch_counts_them(name: str, tmp_path: Path) -> None:
    run = CONVOLUTIONS[name]
    profile = profiled(tmp_path, run)
    assert profile.matmul_flops == counted(run) > 0
    assert profile.matmul_known_share == 1.0


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_convolutions_take_three_times_their_forward(name: str, tmp_path: Path) -> None:
    """PyTorch's counter has the gradient of their weights too high, by the number of groups."""
    module, sizes = GROUPED[name]
    profile = profiled(tmp_path, trained(module, *sizes))
    assert profile.matmul_flops == 3 * counted(lambda: module(torch.randn(*sizes))) > 0


def make(*sizes: int) -> Any:
    return torch.randn(*sizes)


PRODUCTS: dict[str, Callable[[], Any]] = {
    "mm": lambda: torch.mm(make(30, 40), make(40, 50)),
    "addmm": lambda: torch.addmm(make(50), make(30, 40), make(40, 50)),
    "bmm": lambda: torch.bmm(make(4, 30, 40), make(4, 40, 50)),
    "baddbmm": lambda: torch.baddbmm(make(4, 30, 50), make(4, 30, 40), make(4, 40, 50)),
    "linear": lambda: functional.linear(make(2, 30, 40), make(50, 40), make(50)),
    "linear without bias": lambda: functional.linear(make(2, 30, 40), make(50, 40)),
    "matmul, broadcast": lambda: torch.matmul(make(5, 1, 30, 40), make(1, 3, 40, 20)),
    "matmul, vectors": lambda: torch.matmul(make(3, 30, 40), make(40, 20)),
    "einsum": lambda: torch.einsum("bik,bkj->bij", make(4, 30, 40), make(4, 40, 50)),
    "a linear layer trained": trained(nn.Linear(40, 50), 2, 30, 40),
    "attention, in parts": lambda: (
        functional.softmax(make(2, 4, 16, 8) @ make(2, 4, 8, 16), -1) @ make(2, 4, 16, 8)
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_count_as_pytorch_counts_them(name: str, tmp_path: Path) -> None:
    run = PRODUCTS[name]
    profile = profiled(tmp_path, run)
    assert profile.matmul_flops == counted(run) > 0
    assert profile.matmul_known_share == 1.0


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "MATH"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_counts_once_whoever_computes_it(
    backend: str, causal: bool, kv_heads: int, tmp_path: Path
) -> None:
    query, key, value = (make(2, heads, 32, 16) for heads in (4, kv_heads, kv_heads))

    def run() -> None:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            functional.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=kv_heads != 4
            )

    whole = 2 * 2 * 4 * 32 * 32 * (16 + 16)
    profile = profiled(tmp_path, run)
    # A causal mask saves half in one kernel; products of their own are computed whole.
    halves = causal and backend == "FLASH_ATTENTION"
    assert profile.matmul_flops == whole // (2 if halves else 1)
    assert profile.matmul_known_share == 1.0


def test_attention_backward_is_twice_its_forward(tmp_path: Path) -> None:
    query, key, value = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))

    def run() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            functional.scaled_dot_product_attention(query, key, value).sum().backward()

    forward = 2 * 2 * 4 * 32 * 32 * (16 + 16)
    assert profiled(tmp_path, run).matmul_flops == 3 * forward


CELLS = {"lstm": (nn.LSTM, nn.LSTMCell), "gru": (nn.GRU, nn.GRUCell), "rnn": (nn.RNN, nn.RNNCell)}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("layers", "both"), [(1, False), (2, True)])
@pytest.mark.parametrize("trains", [False, True])
def test_recurrent_layers_count_as_their_cells_do(
    name: str, layers: int, both: bool, trains: bool, tmp_path: Path
) -> None:
    steps, batch, wide, hidden = 7, 3, 24, 32
    whole, cell = CELLS[name]
    torch.manual_seed(0)
    layer = whole(wide, hidden, num_layers=layers, bidirectional=both)
    data = torch.randn(steps, batch, wide, requires_grad=True)

    def run() -> None:
        if trains:
            layer(data)[0].sum().backward()
        else:
            with torch.no_grad():
                layer(data)

    expected = 0
    for place in range(layers):
        width = wide if place == 0 else hidden * (2 if both else 1)
        one = cell(width, hidden)
        expected += steps * counted(lambda one=one, width=width: one(make(batch, width)))
    expected *= (2 if both else 1) * (3 if trains else 1)
    found = profiled(tmp_path, run)
    # The first state needs no gradient, so that one product of its backward may be missing.
    assert found.matmul_flops == pytest.approx(expected, rel=0.12 if trains else 1e-9)
    assert (found.matmul_known_share or 0.0) > 0.99


def places_of(name: str) -> list[str]:
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    plain = min(schemas, key=lambda schema: len(schema.arguments))
    return [argument.name for argument in plain.arguments]


def aten_names(pattern: type) -> list[str]:
    names = (name.removeprefix("aten::") for name in RULES if name.startswith("aten::"))
    return sorted(name for name in names if isinstance(RULES[f"aten::{name}"], pattern))


@pytest.mark.parametrize("name", aten_names(BatchedAttention))
def test_attention_has_its_settings_where_the_schema_has_them(name: str) -> None:
    if "::" in name or not hasattr(torch.ops.aten, name):
        pytest.skip("not an operation of this PyTorch")
    names, places = places_of(name), RULES[f"aten::{name}"]
    assert isinstance(places, BatchedAttention)
    assert names[places.query : places.query + 3] == ["query", "key", "value"]
    assert names[places.causal] in ("is_causal", "custom_mask_type")
    assert all(names[place].startswith(("cum_seq", "cu_seqlens")) for place in places.packed)
    if places.window is not None:
        assert names[places.window].startswith("window_size")


@pytest.mark.parametrize("name", aten_names(Convolution))
def test_convolutions_have_their_settings_where_the_schema_has_them(name: str) -> None:
    if "::" in name or not hasattr(torch.ops.aten, name):
        pytest.skip("not an operation of this PyTorch")
    names, places = places_of(name), RULES[f"aten::{name}"]
    assert isinstance(places, Convolution)
    assert names[places.stride] == "stride"
    assert names[places.padding] == "padding"
    assert places.dilation is None or names[places.dilation] == "dilation"
    if places.transposed is not False and places.transposed is not True:
        assert names[places.transposed] == "transposed"
