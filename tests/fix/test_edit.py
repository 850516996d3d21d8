"""Edits of a call keep everything else: comments, layout, other arguments."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.fix.edit import CannotEdit, Edit, diff_of, edited, source_text
from stepgrade.fix.trial import Site


def edit(text: str, call: str, keywords: dict[str, Any], line: str = "") -> str:
    at = next(number for number, one in enumerate(text.splitlines(), 1) if f"{call}(" in one)
    return edited(text, [Edit(Site(call=call, file="train.py", line=at, calls=1), keywords, line)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = DataLoader(data)", "a = DataLoader(data, num_workers=2)"),
        ("a = DataLoader(data, num_workers=0)", "a = DataLoader(data, num_workers=2)"),
        ("a = DataLoader()", "a = DataLoader(num_workers=2)"),
        ("a = DataLoader(data,)", "a = DataLoader(data, num_workers=2)"),
        ("a = DataLoader(f(x), )  # why", "a = DataLoader(f(x), num_workers=2 )  # why"),
        ("a = DataLoader((data))", "a = DataLoader((data), num_workers=2)"),
        ('a = DataLoader("ä", f"{ü}")  # ß', 'a = DataLoader("ä", f"{ü}", num_workers=2)  # ß'),
        ("a = DataLoader(\n    data\n)", "a = DataLoader(\n    data, num_workers=2\n)"),
        (
            "a = DataLoader(\n    data,  # mine\n)",
            "a = DataLoader(\n    data,  # mine\n    num_workers=2,\n)",
        ),
        ("a = wrap(DataLoader(data), b)", "a = wrap(DataLoader(data, num_workers=2), b)"),
        ("a = torch.utils.data.DataLoader(data)", "a = torch.utils.data.DataLoader(data, num_workers=2)"),
    ],
)
def test_a_keyword_is_set_where_the_call_is(before: str, after: str) -> None:
    assert edit(before + "\n", "DataLoader", {"num_workers": 2}) == after + "\n"


def test_a_first_argument_is_replaced() -> None:
    assert (
        edit("torch.set_num_threads(1)  # steady\n", "set_num_threads", {"": 4})
        == "torch.set_num_threads(4)  # steady\n"
    )


def test_a_model_is_compiled_before_its_optimizer() -> None:
    text = "def main():\n    net = Net()\n    # Adam, as always\n    opt = torch.optim.Adam(net.parameters(), lr=1)\n"
    compiled = "def main():\n    net = Net()\n    # Adam, as always\n    net.compile()\n    opt = torch.optim.Adam(net.parameters(), lr=1)\n"
    assert edit(text, "Adam", {}, "{model}.compile()") == compiled


@pytest.mark.parametrize(
    "text",
    [
        "a = DataLoader(data); b = DataLoader(data)\n",  # which of them?
        "a = DataLoader(data, **options)\n",
        "a = make(data)\n# DataLoader(\n",
        "a = DataLoader(\n",
    ],
)
def test_what_cannot_be_edited_surely_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        edit(text, "DataLoader", {"num_workers": 2})


def test_an_optimizer_of_other_parameters_gets_no_line_before_it() -> None:
    for argument in ("groups", "[p for p in net.parameters()]", "net.head.weight"):
        with pytest.raises(CannotEdit):
            edit(f"opt = Adam({argument})\n", "Adam", {}, "{model}.compile()")


ARGUMENTS = st.lists(
    st.sampled_from(["data", "f(a, b)", "(x)", "[1, 2]", "'a,b)'", "lambda q: (q, 1)"]), max_size=3
)
NAMED = st.lists(st.sampled_from(["size", "seed", "num_workers", "order"]), unique=True, max_size=4)
GAPS = st.sampled_from(["", " ", "\n    ", "  # note, with (brackets\n    "])


@given(ARGUMENTS, NAMED, GAPS, st.booleans(), st.integers(0, 64))
def test_only_the_keyword_changes(
    positional: list[str], named: list[str], gap: str, has_comma: bool, value: int
) -> None:
    """Compared as syntax trees: the call has what it had, and the new keyword; every comment is still there."""
    parts = [*positional, *(f"{name}=g({name!r})" for name in named)]
    text = f"a = DataLoader({gap}{f',{gap or chr(32)}'.join(parts)}{',' if has_comma and parts else ''}{gap})\nrest()\n"
    new = edit(text, "DataLoader", {"num_workers": value})
    calls = [ast.parse(one).body[0].value for one in (text, new)]  # type: ignore[attr-defined]
    before, after = ([ast.dump(one) for one in call.args] for call in calls)
    assert before == after
    keywords = [{one.arg: ast.unparse(one.value) for one in call.keywords} for call in calls]
    assert keywords[1] == keywords[0] | {"num_workers": str(value)}
    assert new.count("# note, with (brackets") == text.count("# note, with (brackets")
    assert new.endswith(")\nrest()\n")


def test_a_diff_applies_with_git(tmp_path: Path) -> None:
    before = "first\na = DataLoader(data)\nlast without an end of line"
    (tmp_path / "train.py").write_text(before)
    after = before.replace("(data)", "(data, num_workers=2)")
    diff = diff_of(before, after, "train.py")
    for way in ([], ["-R"]):
        subprocess.run(["git", "apply", *way], cwd=tmp_path, input=diff, text=True, check=True)
        assert (tmp_path / "train.py").read_text() == (before if way else after)


def test_a_file_keeps_its_line_ends_and_its_mark(tmp_path: Path) -> None:
    text = "\ufeffimport x\r\nloader = DataLoader(\r\n    data,\r\n    batch_size=8,  # ä\x0c\r\n)\r\n"
    path = tmp_path / "train.py"
    path.write_bytes(text.encode())
    site = Site(call="DataLoader", file=str(path), line=2, calls=1)
    after = edited(source_text(str(path)), [Edit(site, {"num_workers": 2})])
    assert after == text.replace("\x0c\r\n", "\x0c\r\n    num_workers=2,\r\n")
    assert "\n" not in after.replace("\r\n", "")


def test_a_line_is_what_python_counts_as_one(tmp_path: Path) -> None:
    text = "import x\n\x0c\nmodel = f('\u2028')\noptimizer = SGD(model.parameters())\n"
    site = Site(call="SGD", file="train.py", line=4, calls=1)
    after = edited(text, [Edit(site, {}, "{model}.compile()")])
    assert after == text.replace("optimizer", "model.compile()\noptimizer")
    added = [line for line in diff_of(text, after, "train.py").split("\n")[2:] if line.startswith("+")]
    assert added == ["+model.compile()"]


@pytest.mark.parametrize("data", [b"# \xe4\nx = 1\n", b"x = 1\ry = 2\r"])
def test_a_file_of_another_encoding_is_left_alone(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train.py").write_bytes(data)
    with pytest.raises(CannotEdit):
        source_text(str(tmp_path / "train.py"))


def test_what_is_nested_too_deeply_is_refused() -> None:
    site = Site(call="DataLoader", file="train.py", line=1, calls=1)
    for text in (f"a = b{'.c()' * 5000}.DataLoader(1)\n", f"a = DataLoader({'-' * 5000}1)\n"):
        with pytest.raises(CannotEdit, match="deeply"):
            edited(text, [Edit(site=site, keywords={"num_workers": 2})])
    with pytest.raises(CannotEdit, match="cannot be read"):
        source_text("nowhere/train.py")
