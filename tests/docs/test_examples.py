"""Every example in the documentation runs: console blocks give what they show, Python blocks pass."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepgrade.cli.commands import COMMANDS, load_command
from stepgrade.costs import own, table
from stepgrade.hardware.catalogue import all_devices
from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[Path, str]]:
    return [
        (page, text)
        for page in PAGES
        for found, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder that looks like the checkout: what an example writes there stays there."""
    for name in ("README.md", "docs", "examples", "src", "stepgrade.toml"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run_shell(command: str, checkout: Path) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    ran = subprocess.run(
        command,
        shell=True,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.stdout + ran.stderr


def replayed(text: str, checkout: Path) -> str:
    """Return a console block with each command's real output under it."""
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return "".join(f"$ {command}\n{run_shell(command, checkout)}" for command in commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_blocks_show_real_output(page: Path, checkout: Path, pytestconfig: pytest.Config) -> None:
    text = page.read_text(encoding="utf-8")
    real = BLOCK.sub(
        lambda block: f"```console\n{replayed(block[2], checkout)}```" if block[1] == "console" else block[0],
        text,
    )
    if pytestconfig.getoption("--update-golden"):
        page.write_text(real, encoding="utf-8")
    assert text == real


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda value: getattr(value, "stem", None))
def test_python_blocks_run(page: Path, code: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in code:
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(checkout)
    for module in (own, table):  # whose costs the examples add to
        monkeypatch.setattr(module, "REGISTERED", {})
    exec(compile(code, str(page), "exec"), {})  # noqa: S102  our own examples


def test_there_are_examples_to_run() -> None:
    assert len(blocks("console")) >= 3
    assert len(blocks("python")) >= 3


COMMAND = re.compile(r"^stepgrade ((?:[^\n\\#|>&]|\\\n)+)", re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "line"),
    [
        (page, found)
        for page, text in [
            *blocks("sh"),
            *(
                (page, "".join(re.findall(r"^\$ (.*\n)", shown, re.MULTILINE)))
                for page, shown in blocks("console")
            ),
        ]
        for found in COMMAND.findall(text)
    ],
    ids=lambda value: getattr(value, "stem", None) or value[:40],
)
def test_every_command_is_one_that_can_be_given(page: Path, line: str) -> None:
    """What is only shown is parsed: the command is there, and so are its options and their values."""
    name, *words = shlex.split(line.replace("\\\n", " "))
    assert name in COMMANDS, page.name
    load_command(name)[1].parse(words)


def anchors(page: Path) -> set[str]:
    """Return the places of a page that a link can lead to, as GitHub names them."""
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", head)) for head in heads)
    return {head.strip().lower().replace(" ", "-") for head in plain}


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*PAGES, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for page in pages:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s:]+)\)", text):
            path, _, anchor = target.partition("#")
            there = page.parent / path if path else page
            assert there.exists(), f"{page.name} links to {target}"
            if anchor and there.suffix == ".md":
                assert anchor in anchors(there), f"{page.name} links to {target}"


def test_the_site_has_every_page_and_its_links_stay_on_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "docs" / "site.py", tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.md")}
    for page in built:
        text = BLOCK.sub("", (tmp_path / "site" / page).read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)\s:]*)?\)", text):
            assert (tmp_path / "site" / page.parent / target).exists(), f"{page} links to {target}"
    menu = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(menu) <= {str(page) for page in built}
    assert len(menu) > 15


README = (ROOT / "README.md").read_text(encoding="utf-8")
README_COMMANDS = [
    line.replace("\\\n", " ").strip()
    for page, text in blocks("sh")
    if page.name == "README.md" and page.parent == ROOT
    for line in COMMAND.findall(text)
]


@pytest.mark.parametrize("line", README_COMMANDS, ids=lambda line: line[:30])
def test_every_command_of_the_readme_runs(line: str, checkout: Path) -> None:
    words = shlex.split(line)
    if words[0] in (
        "record",
        "fix",
    ):  # minutes; tests/docs/test_tutorial.py records it, tests/fix fixes others
        assert words[1] == "examples/tutorial/slow.py"
        return
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "stepgrade", *words]
    ran = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    expected = (0, 1, 3) if words[0] == "gate" else (0,)
    assert ran.returncode in expected, ran.stderr
    assert len(ran.stdout.splitlines()) > 4 or words[0] == "watch"


def test_the_readme_is_two_screens_before_the_tables() -> None:
    assert len(README_COMMANDS) > 8
    shown = README.partition("## What the grade means")[0]
    assert shown.count("\n") <= 100
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_demo_runs_and_grades_no_run_twice(checkout: Path) -> None:
    ran = subprocess.run(
        ["sh", ROOT / "examples" / "demo.sh"],
        env=os.environ | {"BIN": str(Path(sys.executable).parent), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "record" in ran.stdout.split("\n# ")[1]
    graded = re.findall(r"^\$ stepgrade score (\S+)", ran.stdout, re.MULTILINE)
    assert len(graded) == len(set(graded)) == 2


def test_the_readme_counts_the_catalogue() -> None:
    assert f"catalogue of {len(all_devices())} accelerators" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )
