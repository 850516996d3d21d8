"""The gate from the command line: exit codes, budgets, waivers, every format."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.units import MISSING
from tests.builders import make_step_profile
from tests.conftest import ROOT, Ran

Run = Callable[..., Ran]
FORMATS = ("terminal", "markdown", "json", "junit", "github", "sarif", "badge", "html")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_SHA", "GITHUB_REF_NAME", "GITHUB_HEAD_REF"):
        monkeypatch.delenv(name, raising=False)


def write(name: str, *, seed: int = 0, slower: float = 0.0, **fields: object) -> Path:
    chance = random.Random(seed)
    samples = [100.0 * (1.0 + slower) * (1.0 + chance.gauss(0.0, 0.005)) for _ in range(40)]
    path = Path(name)
    path.write_text(make_step_profile(steps=40, step_ms=sum(samples) / 40, samples_ms=samples, **fields))
    return path


@pytest.fixture
def history(stepgrade: Run) -> None:
    """Keep eight runs of main."""
    for seed in range(8):
        run = write(f"old{seed}.json", seed=seed)
        assert stepgrade("history", "add", run, "--branch", "main", "--commit", f"c{seed}").code == 0


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("slower", "code"), [(0.0, 0), (0.08, 1), (-0.08, 0)])
def test_against_history(stepgrade: Run, slower: float, code: int) -> None:
    ran = stepgrade("gate", write("new.json", seed=50, slower=slower), "--against", "history:main")
    assert ran.code == code, ran.out
    assert ("What changed" in ran.out) is (slower != 0.0)


@pytest.mark.usefixtures("history")
def test_a_slow_operation_is_named(stepgrade: Run) -> None:
    new = write("new.json", seed=50, slower=0.08, ops={"gemm": 2400.0, "attention": 100.0, "dropout": 300.0})
    ran = stepgrade("gate", new, "--against", "history:main")
    assert ran.code == 1
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["dropout", MISSING, "7.5", "ms", "new"] in rows
    assert "operation gemm" in ran.out


def test_two_files_and_a_given_noise(stepgrade: Run) -> None:
    old, new = write("old.json"), write("new.json", seed=1, slower=0.08)
    assert stepgrade("gate", new, "--baseline", old).code == 3
    assert stepgrade("gate", new, "--baseline", old, "--cannot-tell", "pass").code == 0
    assert stepgrade("gate", new, "--baseline", old, "--run-noise", "1%").code == 1
    assert stepgrade("gate", old, "--baseline", new, "--run-noise", "0.01").code == 0


def test_repeated_runs_measure_the_noise(stepgrade: Run) -> None:
    olds = [write(f"o{n}.json", seed=n) for n in range(3)]
    news = [write(f"n{n}.json", seed=10 + n, slower=0.06) for n in range(3)]
    repeats = [word for new in news[1:] for word in ("--repeat", new)]
    baselines = [word for old in olds for word in ("--baseline", old)]
    ran = stepgrade("gate", news[0], *repeats, *baselines)
    assert ran.code == 1
    assert "measured from the repeated runs" in ran.out


def test_different_fingerprints_are_not_compared(stepgrade: Run) -> None:
    old, new = write("old.json", tokens_per_step=128), write("new.json", tokens_per_step=4096, slower=0.5)
    ran = stepgrade("gate", new, "--baseline", old, "--run-noise", "1%")
    assert ran.code == 3
    difference = "tokens_per_step: 4,096 now, 128 in the baseline"
    assert 0 < ran.out.index(difference) < ran.out.index("could not be measured")


@pytest.mark.parametrize(("slower", "code"), [(0.5, 0), (1.5, 1)])
def test_allowed_differences_are_told_first_and_other_work_is_compared_by_its_rate(
    stepgrade: Run, slower: float, code: int
) -> None:
    old = write("old.json", tokens_per_step=128)
    new = write("new.json", tokens_per_step=256, slower=slower)
    options = ("--run-noise", "1%", "--allow-different", "tokens_per_step")
    ran = stepgrade("gate", new, "--baseline", old, *options)
    assert ran.code == code
    assert ran.out.index("compared although these differ") < ran.out.index("throughput_tok_s")
    scored = stepgrade("score", new, "--baseline", old, "--allow-different", "tokens_per_step")
    assert "compared although these differ" in scored.out
    alone = stepgrade("score", new, "--baseline", old)
    assert "not comparable, these differ" in alone.out
    assert "no regression" not in alone.out


def test_a_history_of_other_runs_says_how_they_differ(stepgrade: Run) -> None:
    stepgrade("history", "add", write("old.json", tokens_per_step=2048), "--branch", "main")
    ran = stepgrade("gate", write("new.json", tokens_per_step=4096), "--against", "history:main")
    assert ran.code == 3
    assert "no run of branch main is comparable" in ran.out
    assert "tokens_per_step: 4,096 now, 2,048 in the baseline" in ran.out


@pytest.mark.usefixtures("history")
def test_nothing_comparable_is_not_a_pass(stepgrade: Run) -> None:
    new = write("new.json")
    assert stepgrade("gate", new, "--against", "history:topic").code == 3
    assert stepgrade("gate", new).code == 2
    assert stepgrade("gate", new, "--against", "main").code == 2
    assert stepgrade("gate", new, "--against", "history:main", "--baseline", new).code == 2
    assert stepgrade("gate", "absent.json", "--against", "history:main").code == 2
    assert stepgrade("gate", new, "--against", "history:main", "--fail-on", "warning").code == 2
    assert stepgrade("gate", new, "--fail-on", "grade:C").code == 3


BUDGETS = """
[gate]
run_noise = 0.01
{gate}

[[budget]]
metric = "step_time_ms"
{budget}

{waiver}
"""


@pytest.mark.parametrize(
    ("gate", "budget", "waiver", "code"),
    [
        ("", "", "", 1),
        ("", "allow = 0.05", "", 1),
        ("", "allow = 0.15", "", 0),
        ("", 'allow = 0.15\ndevice = "h100*"', "", 1),
        ("", "at_most = 90.0\nallow = 0.5", "", 1),
        ("", "at_most = 200.0\nallow = 0.5", "", 0),
        ("", "at_least = 90.0\nallow = 0.5", "", 0),
        ("", 'direction = "down"', "", 0),
        ("", 'direction = "both"', "", 1),
        ("", "", '[[waiver]]\nmetric = "step_time_ms"\nuntil = 2999-01-01\nreason = "known"', 0),
        ("", "", '[[waiver]]\nmetric = "step_*"\nuntil = 2999-01-01\nreason = "known"', 0),
        ("", "", '[[waiver]]\nmetric = "other"\nuntil = 2999-01-01\nreason = "known"', 1),
        ("", "", '[[waiver]]\nmetric = "step_time_ms"\nuntil = 2001-01-01\nreason = "known"', 1),
        ('fail_on = ["grade:C"]', "allow = 0.5", "", 3),
    ],
)
def test_budgets_and_waivers(stepgrade: Run, gate: str, budget: str, waiver: str, code: int) -> None:
    Path("stepgrade.toml").write_text(BUDGETS.format(gate=gate, budget=budget, waiver=waiver))
    old, new = write("old.json"), write("new.json", seed=1, slower=0.10)
    ran = stepgrade("gate", new, "--baseline", old)
    assert ran.code == code, ran.out
    assert ("expired on 2001-01-01" in ran.out) is ("2001" in waiver)
    shown = " ".join(ran.out.split())
    assert ("[waived until 2999-01-01: known]" in shown) is (bool(waiver) and code == 0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[gate", "is not valid TOML"),
        ("[gate]\nallow = 'much'", "gate.allow"),
        ("[gate]\nallow = -1.0", "must be a share"),
        ("[gate]\ncolour = 1", "colour"),
        ("[gates]\n", "gates"),
        ("[[budget]]\n", "metric"),
        ('[[budget]]\nmetric = "speed"', "unknown metric 'speed'"),
        ('[[budget]]\nmetric = "step_time_ms"\ndirection = "left"', "budget[0].direction"),
        ('[[waiver]]\nmetric = "step_time_ms"\nuntil = 2999-01-01\nreason = " "', "needs a reason"),
        ('[[waiver]]\nmetric = "step_time_ms"\nuntil = "soon"\nreason = "x"', "waiver"),
        ('[[waiver]]\nmetric = "step_time_ms"\nreason = "x"', "until"),
    ],
)
def test_bad_configurations(stepgrade: Run, text: str, word: str) -> None:
    Path("mine.toml").write_text(text)
    new = write("new.json")
    ran = stepgrade("gate", new, "--baseline", new, "--budgets", "mine.toml")
    assert ran.code == 2
    assert word in ran.err
    assert "Traceback" not in ran.err


def test_a_configuration_that_is_not_there_or_no_text(stepgrade: Run) -> None:
    new = write("new.json")
    assert stepgrade("gate", new, "--baseline", new, "--budgets", "absent.toml").code == 2
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in stepgrade("gate", new, "--baseline", new, "--budgets", "bytes.toml").err


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("slower", [0.0, 0.10])
def test_every_format(stepgrade: Run, name: str, slower: float) -> None:
    old, new = write("old.json"), write("<new>&%0A\n.json", seed=1, slower=slower)
    ran = stepgrade(
        "gate", new, "--baseline", old, "--run-noise", "1%", "--format", name, "--also", f"{name}=copy"
    )
    assert ran.code == (1 if slower else 0)
    assert "\n.json" not in ran.out
    if name != "terminal":
        assert Path("copy").read_text() == ran.out
    check = {
        "terminal": _check_terminal,
        "markdown": _check_markdown,
        "html": _check_html,
        "json": _check_json,
        "junit": _check_junit,
        "sarif": _check_sarif,
        "github": _check_github,
        "badge": _check_badge,
    }
    check[name](ran.out, slower > 0.0)
    if name in ("badge", "junit"):
        ET.fromstring(ran.out)


def _check_terminal(text: str, failed: bool) -> None:
    lines = text.splitlines()
    assert lines[0].startswith("stepgrade gate · ")
    assert lines[1].startswith("against old.json")
    assert lines[3].strip() == ("regressed" if failed else "pass")
    at = lines.index("Checks")
    assert lines[at + 1].strip() == ("regressed" if failed else "pass")
    (row,) = (line for line in lines if line.startswith("  step time "))
    assert re.search(
        r"99\.9 ms +1[01]\d ms  \+\d+\.\d % \(" if failed else r"99\.9 ms +\d+ ms  [+-]0\.\d % \(", row
    )
    assert "noise from run to run (step time): 1.0 %, as given; 1 earlier run" in " ".join(text.split())
    assert any(line.startswith("What changed") for line in lines) is failed


def _check_markdown(text: str, failed: bool) -> None:
    assert text.startswith("## ❌ stepgrade: regressed\n" if failed else "## ✅ stepgrade: pass\n")
    assert "**Grade ungraded**" in text
    assert " against old.json" in text
    assert re.search(r"\| step\\_time\\_ms \| (\w+) \| ", text)[1] == ("regressed" if failed else "pass")  # type: ignore[index]
    verdict = "regressed" if failed else "no change"
    assert re.search(rf"\| step time \| 99\.9 ms \| \d+ ms \| [^|]+ \| {verdict} \| 1.0 %, as given \|", text)
    assert ("| Kind | Part | Before | Now | Change |" in text) is failed


def _check_html(text: str, failed: bool) -> None:
    shown = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL)
    words = " ".join(shown.split())
    assert (
        f'<p class="answer {"badge-bad" if failed else "badge-good"}">{"Regressed" if failed else "Pass"}</p>'
        in text
    )
    assert "Against old.json" in words
    assert re.search(rf"step\_time\_ms {'regressed' if failed else 'pass'} ", words)
    assert re.search(r"step time 99\.9 ms \d+ ms [+-]\d+\.\d %", words)
    assert "1.0 %, as given · 1 earlier run" in words
    assert ("Nothing changed beyond the noise" in words) is not failed


def _check_badge(text: str, failed: bool) -> None:
    assert "training: ungraded" in text


def _check_json(text: str, failed: bool) -> None:
    report = json.loads(text)
    assert report["verdict"] == ("regressed" if failed else "pass")
    assert report["exit_code"] == int(failed)
    assert report["changes"][0]["metric"] == "step_time_ms"


# What Jenkins' published schema allows below each element, and which attributes it has.
JUNIT = {
    "testsuites": ({"testsuite"}, {"name", "tests", "failures", "errors"}),
    "testsuite": ({"testcase"}, {"name", "tests", "failures", "errors", "skipped"}),
    "testcase": ({"failure", "error", "skipped", "system-out"}, {"name", "classname"}),
    "failure": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
    "skipped": (set(), set()),
    "system-out": (set(), set()),
}


def _check_junit(text: str, failed: bool) -> None:
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        children, attributes = JUNIT[element.tag]
        assert {child.tag for child in element} <= children
        assert set(element.attrib) <= attributes
    (suite,) = root
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        count = str(len(list(root.iter(tag))))
        assert root.attrib[name] == suite.attrib[name] == count
    assert suite.attrib["failures"] == str(int(failed))
    assert len(suite) > 0


def _check_sarif(text: str, failed: bool) -> None:
    document = json.loads(text)
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    run = document["runs"][0]
    driver = run["tool"]["driver"]
    assert driver["name"] == "stepgrade"
    known = {rule["id"] for rule in driver["rules"]}
    for result in run["results"]:
        assert result["ruleId"] in known
        assert result["message"]["text"]
        assert result["kind"] in ("pass", "fail", "review")
        assert (result["level"] == "none") is (result["kind"] != "fail")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("%3Cnew")
        assert place["region"] == {"startLine": 1}
    assert [result["level"] for result in run["results"]] == ["error" if failed else "none"]
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": int(failed)}]


def _check_github(text: str, failed: bool) -> None:
    assert text.startswith("::error title=stepgrade%3A step_time_ms regressed::") is failed
    assert ("%25" in text) is failed


def test_the_job_summary_is_added_to(stepgrade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    new = write("new.json")
    stepgrade("gate", new, "--baseline", new, "--run-noise", "1%", "--format", "github")
    text = Path("summary.md").read_text()
    assert text.startswith("before\n## ")
    assert "step" in text


def test_a_waived_check_is_skipped_in_junit_and_suppressed_in_sarif(stepgrade: Run) -> None:
    waiver = '[[waiver]]\nmetric = "step_time_ms"\nuntil = 2999-01-01\nreason = "known"'
    Path("stepgrade.toml").write_text(BUDGETS.format(gate="", budget="", waiver=waiver))
    old, new = write("old.json"), write("new.json", seed=1, slower=0.10)
    junit = ET.fromstring(stepgrade("gate", new, "--baseline", old, "--format", "junit").out)
    (skipped,) = junit.iter("skipped")
    assert "waived until 2999-01-01: known" in (skipped.text or "")
    sarif = json.loads(stepgrade("gate", new, "--baseline", old, "--format", "sarif").out)
    (result,) = sarif["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "justification": "until 2999-01-01: known"}]


def test_what_could_not_be_measured_is_no_success_in_junit(stepgrade: Run) -> None:
    old, new = write("old.json", tokens_per_step=1), write("new.json", tokens_per_step=2)
    ran = stepgrade("gate", new, "--baseline", old, "--format", "junit")
    assert (ran.code, 'errors="1"' in ran.out) == (3, True)
    sarif = json.loads(stepgrade("gate", new, "--baseline", old, "--format", "sarif").out)["runs"][0]
    (told,) = sarif["invocations"]
    assert (told["executionSuccessful"], told["exitCode"]) == (False, 3)
    assert "tokens_per_step" in told["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize(
    ("slower", "inputs", "code", "verdict"),
    [
        (0.0, {"OPTIONS": "--run-noise\n1%"}, 0, "pass"),
        (0.2, {"OPTIONS": "--run-noise\n1%", "SAVE": "true"}, 1, "regressed"),
        (0.2, {"OPTIONS": "--tokens-per-step\n7", "BASELINE": "wide.json"}, 3, "could not be measured"),
        (
            0.2,
            {"OPTIONS": "--tokens-per-step\n7", "BASELINE": "wide.json", "UNMEASURED": "pass"},
            0,
            "could not",
        ),
        (0.0, {"BASELINE": "absent.json"}, 2, "bad input"),
    ],
)
def test_the_action(tmp_path: Path, slower: float, inputs: dict[str, str], code: int, verdict: str) -> None:
    new = write("it's $(new).json", seed=1, slower=slower)
    write("old.json")
    write("wide.json", tokens_per_step=128)
    said = {"SOURCE": str(new), "BASELINE": "old.json", "REPORTS": "out"} | inputs
    environment = os.environ | {f"STEPGRADE_{name}": text for name, text in said.items()}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_SHA": "feedface",
    }
    ran = subprocess.run(
        ["bash", ROOT / "action" / "gate.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert f"verdict={verdict}" in Path("output").read_text()
    if verdict in ("pass", "regressed"):
        assert sorted(path.name for path in Path("out").iterdir()) == REPORTS
        assert Path("summary.md").read_text() == Path("out/gate.md").read_text()
    assert Path(".stepgrade/history.db").exists() is ("SAVE" in inputs)


REPORTS = ["gate.html", "gate.json", "gate.md", "gate.sarif", "gate.xml", "grade.svg"]


def test_the_action_hands_every_input_over() -> None:
    text = (ROOT / "action.yml").read_text()
    declared = re.findall(r"^  ([a-z-]+):$", text.split("outputs:")[0], re.MULTILINE)
    handed = re.findall(r"STEPGRADE_([A-Z]+): \$\{\{ inputs\.([a-z-]+) \}\}", text)
    assert set(declared) - {"comment"} == {name for _, name in handed}  # which is a step's condition
    for step in re.split(r"^    - name: ", text, flags=re.MULTILINE)[2:]:
        script = (ROOT / re.findall(r"action/[a-z]+\.sh", step)[0]).read_text()
        assert set(re.findall(r"STEPGRADE_([A-Z]+)", script)) == set(re.findall(r"STEPGRADE_([A-Z]+)", step))
    assert "${{" not in "".join(re.findall(r"run: .*", text))


GH = """#!/bin/sh
echo "$*" >> "$TOLD"
for word; do case $word in body=@*) cp "${word#body=@}" "$TOLD.md";; --jq) printf '%s' "$KNOWN";; esac; done
exit "${FAILS:-0}"
"""


@pytest.mark.parametrize(
    ("known", "fails", "told"),
    [
        ("", "0", "api --silent repos/me/it/issues/7/comments"),
        ("41\n42\n", "0", "api --silent --method PATCH repos/me/it/issues/comments/42"),
        ("", "1", "api --silent repos/me/it/issues/7/comments"),
    ],
)
def test_the_comment_has_both_reports_and_replaces_an_earlier_one(
    tmp_path: Path, known: str, fails: str, told: str
) -> None:
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(GH)
    gh.chmod(0o755)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gate.md").write_text("# regressed\n" + "ä" * 40_000)
    (tmp_path / "out" / "fix.md").write_text("# tried\n")
    environment = os.environ | {
        "PATH": f"{gh.parent}{os.pathsep}{os.environ['PATH']}", "TOLD": str(tmp_path / "told"), "KNOWN": known, "FAILS": fails,
        "GITHUB_REF": "refs/pull/7/merge", "GITHUB_REPOSITORY": "me/it", "STEPGRADE_REPORTS": str(tmp_path / "out"),
    }  # fmt: skip
    command = ["bash", str(ROOT / "action" / "comment.sh")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ("could not comment" in ran.stdout) is (fails == "1")
    assert (tmp_path / "told").read_text().splitlines()[-1].startswith(told)
    body = (tmp_path / "told.md").read_text()
    assert body.startswith("<!-- stepgrade -->\n# regressed\n")
    assert "# tried" in body
    assert len(body) < 65_536
    no_request = environment | {"GITHUB_REF": "refs/heads/main", "TOLD": str(tmp_path / "none")}
    assert subprocess.run(command, env=no_request, capture_output=True, check=False).returncode == 0
    assert not (tmp_path / "none").exists()


STEPGRADE = """#!/bin/sh
printf '%s\\n' "$@" > "$TOLD"
while [ "$#" -gt 0 ]; do [ "$1" = --output ] && echo tried > "$2"; shift; done
exit "$CODE"
"""


@pytest.mark.parametrize(("said", "code"), [("0", 0), ("3", 0), ("2", 2)])
def test_the_action_tries_fixes_of_a_command(tmp_path: Path, said: str, code: int) -> None:
    program = tmp_path / "bin" / "stepgrade"
    program.parent.mkdir()
    program.write_text(STEPGRADE)
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "TOLD": str(tmp_path / "told"), "CODE": said,
        "STEPGRADE_FIX": "train.py\n--name\nit's $(me)\n", "STEPGRADE_TIME": "5m", "STEPGRADE_REPORTS": str(tmp_path / "out"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip
    command = ["bash", str(ROOT / "action" / "fix.sh")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    words = (tmp_path / "told").read_text().splitlines()
    assert words[:3] == ["fix", "--budget", "5m"]
    assert words[-4:] == ["--", "train.py", "--name", "it's $(me)"]
    assert (tmp_path / "out" / "fix.md").read_text() == "tried\n"


def test_score_and_gate_keep_runs(stepgrade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SHA", "feedface")
    monkeypatch.setenv("GITHUB_REF_NAME", "topic")
    run = write("run.json")
    assert stepgrade("score", run, "--save", "--label", "machine=a").code == 0
    assert stepgrade("gate", run, "--baseline", run, "--save", "--branch", "main").code == 0
    listed = stepgrade("history", "list", "--format", "json")
    rows = [json.loads(line) for line in listed.out.splitlines()]
    assert [(row["branch"], row["commit"]) for row in rows] == [("topic", "feedface"), ("main", "feedface")]
    assert rows[0]["labels"] == {"machine": "a"}
    assert (
        stepgrade("score", run, "--save", "--contract", "v1", "--throughput", "1", "--device", "gb10").code
        == 2
    )


@pytest.mark.usefixtures("history")
def test_history_commands(stepgrade: Run) -> None:
    assert "8 runs" in stepgrade("history", "list").out
    assert "3 runs" in stepgrade("history", "list", "--limit", 3).out
    assert "step_profiler_v2" in stepgrade("history", "show", 1).out
    assert stepgrade("history", "show", 99).code == 2
    trend = stepgrade("history", "trend", "--branch", "main")
    assert "8 runs" in trend.out
    assert json.loads(stepgrade("history", "trend", "--format", "json").out)["metric"] == "step_time_ms"
    assert stepgrade("history", "trend", "speed").code == 2
    assert len(stepgrade("history", "export").out.splitlines()) == 8
    assert stepgrade("history", "prune").code == 2
    ran = stepgrade("history", "prune", "--keep", 2)
    assert (ran.code, "would remove 6 of " in ran.err, "--yes" in ran.err) == (2, True, True)
    assert "removed 6 of " in stepgrade("history", "prune", "--keep", 2, "--yes").out
    assert stepgrade("history", "prune", "--older-than", "yesterday").code == 2
    assert stepgrade("history").code == 2


def test_a_trend_draws_the_change_and_names_the_commits(stepgrade: Run) -> None:
    for number in range(24):
        run = write("run.json", seed=number, slower=0.15 if number >= 14 else 0.0)
        stepgrade("history", "add", run, "--branch", "main", "--commit", f"commit{number}")
    out = stepgrade("history", "trend", "--branch", "main").out
    assert "commits commit13..commit14" in out
    assert "│" in out
