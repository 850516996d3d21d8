"""Completion in the real shells: commands, options and values, and nothing of ours runs when a key is pressed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.cli.commands import COMMANDS, load_command
from stepgrade.hardware.catalogue import all_devices
from tests.conftest import Ran

Run = Callable[..., Ran]
# What is typed -> what is offered, and what is not.
TYPED = [
    ("stepgrade sc", {"score"}, {"gate"}),
    ("stepgrade ", set(COMMANDS), {"--device"}),
    ("stepgrade score --dev", {"--device", "--device-file"}, {"--format"}),
    ("stepgrade score --device rtx-409", {"rtx-4090", "rtx-4090-laptop"}, {"h100-nvl"}),
    ("stepgrade score --format ", {"terminal", "markdown", "json", "html"}, {"--device"}),
    ("stepgrade gate --cannot-tell ", {"fail", "pass"}, {"score"}),
    ("stepgrade devices h100", {"h100-pcie", "h100-sxm5-80gb"}, {"a100-pcie-40gb"}),
    ("stepgrade history tr", {"trend"}, {"prune"}),
    ("stepgrade completion ", {"bash", "zsh", "fish"}, {"score"}),
    ("stepgrade score run", {"run.json"}, {"score"}),
]


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def script(stepgrade: Run, shell: str, tmp_path: Path) -> Path:
    ran = stepgrade("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    path = tmp_path / f"_stepgrade.{shell}"
    path.write_text(ran.out)
    (tmp_path / "run.json").write_text("{}")
    return path


def in_shell(shell: str, script: Path, typed: str) -> set[str]:
    if shell == "bash":
        words = typed.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        last = words[-1]
        code = (
            f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _stepgrade; "
            # As readline does it with `-o default`: files where the function has nothing to offer.
            f'[[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "{last}")); '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "--norc", "-c", code]
    elif shell == "fish":
        command = ["fish", "--no-config", "-c", f'source {script}; complete -C "{typed}"']
    else:
        # The real completion system, asked in a terminal of its own; each match is printed, none is inserted.
        code = f"""
zmodload zsh/zpty
zpty z 'exec zsh -f -i'
zpty -w z "PROMPT=; RPROMPT=; stty -echo; autoload -Uz compinit; compinit -u -D; source {script}"
zpty -w z 'compadd() {{ local -a hits; builtin compadd -A hits -O hits "$@"; print -rl -- "<hit>"${{^hits}}"</hit>"; }}'
zpty -w z "zstyle ':completion:*' list-colors ''; bindkey '^I' complete-word; print ready-to-ask"
local line
while zpty -r z line; do [[ $line == ready-to-ask* ]] && break; done
zpty -w -n z $'{typed}\\t'
local all=''
repeat 40; do sleep 0.05; while zpty -r -t z line; do all+=$line; done; done
print -r -- $all
zpty -d z
"""
        command = ["zsh", "-f", "-c", code]
    ran = subprocess.run(
        command,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TERM": "dumb", "HOME": str(script.parent)},
    )
    if shell == "zsh":
        import re

        return set(re.findall(r"<hit>(.*?)</hit>", ran.stdout))
    return {line.split("\t")[0] for line in ran.stdout.splitlines()}


def test_the_script_is_one_of_its_shell(shell: str, script: Path) -> None:
    checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("typed", "offered", "never"), TYPED)
def test_what_is_offered(shell: str, script: Path, typed: str, offered: set[str], never: set[str]) -> None:
    found = in_shell(shell, script, typed)
    assert offered <= found
    assert not never & found


def test_every_command_and_device_is_in_each_script(stepgrade: Run) -> None:
    for name in ("bash", "zsh", "fish"):
        words = set(
            stepgrade("completion", name).out.replace("'", " ").replace('"', " ").replace(":", " ").split()
        )
        assert {*COMMANDS, *all_devices()} <= words


def test_a_command_that_cannot_be_imported_is_named(stepgrade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A completion with fewer commands would look like one that is whole."""

    def load(name: str) -> object:
        if name == "gate":
            raise ModuleNotFoundError("No module named 'stepgrade.cli.gate'")
        return load_command(name)

    monkeypatch.setattr("stepgrade.cli.completion.load_command", load)
    ran = stepgrade("completion", "bash")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "stepgrade: stepgrade gate: cannot be imported: No module named 'stepgrade.cli.gate'\n"


def test_a_script_is_written_over_one_that_has_the_name_of_its_shell(
    stepgrade: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bash").write_text("an older script")
    assert stepgrade("completion", "bash", "-o", "bash").code == 0
    assert Path("bash").read_text().startswith("# stepgrade completion bash")


def test_a_shell_that_is_not_known(stepgrade: Run) -> None:
    ran = stepgrade("completion", "fsh")
    assert ran.code == 2
    assert "did you mean fish?" in ran.err
