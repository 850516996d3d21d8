"""Attention that a source writes out becomes the library's call, and computes the same."""

from __future__ import annotations

import pytest

from stepgrade.fix.attention import attention_edits
from stepgrade.fix.edit import diff_of, edited
from tests.conftest import ROOT

torch = pytest.importorskip("torch")
HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.25
        self.drop = nn.Dropout(0.0)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))
        self.register_buffer("wide", torch.tril(torch.ones(16, 16), 2).view(1, 1, 16, 16))

    def forward(self, q, k, v, mask):
        T = q.shape[-2]
"""
CAUSAL, USUAL = "is_causal=True", ""
BODIES = {
    # each with what the call is told, beside q, k and v
    "return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1) @ v": "",
    "return torch.matmul(F.softmax(torch.matmul(q, k.transpose(-1, -2)) * self.scale, dim=-1), v)": ", scale=self.scale",
    "return (q @ k.mT).softmax(dim=-1).matmul(v)": ", scale=1.0",
    "att = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1)))  # scores\n"
    "        # causal\n"
    "        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))\n"
    "        att = F.softmax(att, dim=-1)\n"
    "        att = self.drop(att)\n"
    "        return att @ v": ", dropout_p=self.drop.p if self.training else 0.0, is_causal=True",
    "s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5\n"
    "        keep = torch.ones(T, T, dtype=torch.bool).tril()\n"
    "        return s.masked_fill(~keep, -1e9).softmax(-1) @ v": ", is_causal=True",
    "s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5\n"
    "        future = torch.triu(torch.ones(T, T), diagonal=1).bool()\n"
    "        s.masked_fill_(future, -torch.inf)\n"
    "        return torch.softmax(s, -1) @ v": ", is_causal=True",
    "s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5\n"
    "        s = s.masked_fill(self.wide[:, :, :T, :T] == 0, float('-inf'))\n"
    "        return s.softmax(-1) @ v": ", attn_mask=self.wide[:, :, :T, :T] != 0",
    "return (q @ k.mT / 3.0 + mask).softmax(-1) @ v": ", attn_mask=mask, scale=1.0 / 3.0",
}


def rewritten(body: str) -> str:
    text = f"{HEAD}        {body}\n"
    return edited(text, attention_edits("train.py", text))


@pytest.mark.parametrize("body", BODIES)
def test_written_out_attention_becomes_a_call_that_computes_the_same(body: str) -> None:
    new = rewritten(body)
    said = " ".join(new.split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")
    assert f"F.scaled_dot_product_attention(q, k, v{BODIES[body]})" in said
    assert ("# causal" in new) is ("# causal" in body)  # a comment on a line of its own stays
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 8, 16, dtype=torch.float64) for _ in range(3)] + [torch.randn(8, 8).double()]
    outputs = []
    for text in (f"{HEAD}        {body}\n", new):
        names: dict[str, type] = {}
        exec(text, names)  # noqa: S102  the test's own text
        outputs.append(names["Attention"]()(*inputs))
    assert torch.allclose(*outputs, atol=1e-9)


@pytest.mark.parametrize(
    "body",
    [
        "att = (q @ k.mT).softmax(-1)\n        self.seen = att\n        return att @ v",  # it is looked at
        "att = q @ k.mT\n        k = k * 2\n        return att.softmax(-1) @ v",  # keys change in between
        "att = q @ k.mT\n        att += mask\n        return att.softmax(-1) @ v",  # changed in place
        "att = (q @ k.mT).softmax(-1)\n        att.masked_fill_(mask > 0, -1e9)\n        return att @ v",  # weights
        "return (q @ k.mT).softmax(-2) @ v",  # another dimension
        "return (q @ k).softmax(-1) @ v",
        "return (q @ k.mT).masked_fill(mask > 0, 0.0).softmax(-1) @ v",  # zero is not hidden
        "return ((q @ k.mT + mask).masked_fill(mask > 0, -1e9)).softmax(-1) @ v",  # two masks
        "return ((q @ k.mT + mask) / 3.0).softmax(-1) @ v",  # the mask is scaled too
        "return (q @ k.mT).softmax(-1, dtype=torch.float32) @ v",
    ],
)
def test_what_is_not_plainly_attention_is_left_alone(body: str) -> None:
    assert rewritten(body) == f"{HEAD}        {body}\n"


def test_line_ends_and_layout_stay() -> None:
    text = f"{HEAD}        {next(iter(BODIES))}\n".replace("\n", "\r\n")
    new = edited(text, attention_edits("train.py", text))
    assert "\n" not in new.replace("\r\n", "")
    assert new.startswith(HEAD.replace("\n", "\r\n"))


def test_the_edit_of_the_tutorial_is_the_one_that_the_readme_shows() -> None:
    name = "examples/tutorial/slow.py"
    text = (ROOT / name).read_text()
    diff = diff_of(text, edited(text, attention_edits(name, text)), name)
    changed = [line for line in diff.splitlines()[2:] if line[0] in "+-"]
    assert "```diff\n" + "\n".join(changed) + "\n```" in (ROOT / "README.md").read_text()
