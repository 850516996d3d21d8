"""Whose code a Python frame is, and how its line is shown."""

from __future__ import annotations

import pytest

from stepgrade.naming.python_frames import read_frame, without_address


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("train.py(88): train_step", "train.py:88"),
        ("mymodel/data.py(41): make_batch", "mymodel/data.py:41"),
        ("/home/alice/runs/train.py(3): main", "~/runs/train.py:3"),
        ("/root/train.py(3): main", "~/train.py:3"),
        ("/Users/bob/x.py(3): main", "~/x.py:3"),
        ("C:\\Users\\bob\\x.py(3): main", "~/x.py:3"),
        ("/workspace/src/train.py(3): main", "/workspace/src/train.py:3"),
        ("<ipython-input-3-8f>(12): train", "<ipython-input-3-8f>:12"),
        ("/home/a/transformers/examples/run.py(9): main", "~/transformers/examples/run.py:9"),
    ],
)
def test_the_users_own_code_is_shown_without_the_home_directory(text: str, where: str) -> None:
    frame = read_frame(text)
    assert frame.is_user
    assert frame.where == where


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch/nn/modules/module.py(1782): _call_impl", "torch._call_impl"),
        ("/opt/conda/lib/python3.8/site-packages/torch/serialization.py(9): save", "torch.save"),
        ("../../usr/lib/python3.10/threading.py(9): wait", "threading.wait"),
        ("enum.py(1230): __hash__", "enum.__hash__"),
        ("/home/a/transformers/src/transformers/trainer.py(9): train", None),
        ("/opt/pytorch/pytorch/torch/nn/functional.py(9): linear", None),
        ("/var/torchinductor_root/ov/cov.py(2533): call", None),
        ("<frozen os>(674): __getitem__", None),
        ("<built-in function sleep>", "sleep"),
        ("<built-in method item of Tensor object at 0x7f55514959f0>", "Tensor.item"),
        ("<built-in method randn of type object at 0x7f55746cea40>", "randn"),
        ("something else", "something else"),
    ],
)
def test_code_of_others_is_never_taken_for_the_users(text: str, name: str | None) -> None:
    frame = read_frame(text)
    assert not frame.is_user
    assert name is None or frame.name == name


def test_the_address_of_an_object_is_left_out() -> None:
    text = "<built-in method item of Tensor object at 0x7f55514959f0>"
    assert without_address(text) == "<built-in method item of Tensor object>"
