"""The page without a browser: what is in it, what is not, and that the same card gives the same bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade import report
from stepgrade.errors import MissingExtra
from stepgrade.model import Source, Span
from stepgrade.model.notes import Result
from stepgrade.report.content import scorecard_page as perfetto
from stepgrade.report.html import page as html_page
from stepgrade.report.names import printable, shortened
from stepgrade.report.own_paths import without_own_paths
from tests.conftest import ROOT
from tests.report.html import cards

PAGES: dict[str, Callable[[], Result]] = {
    "bundled": cards.bundled_card,
    "step_profile": cards.step_profile_card,
    "full": cards.full_card,
    "bare": cards.bare_card,
    "hostile": cards.hostile_card,
    "parity": cards.parity_report,
    "hostile_parity": cards.hostile_parity,
    "memory": cards.memory_card,
    "gate": cards.gate_report,
    "unmeasured_gate": cards.unmeasured_gate,
    "hostile_gate": cards.hostile_gate,
}


class Elements(HTMLParser):
    """What a parser sees: tags with attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.texts: list[str] = []
        self.within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag

    def handle_data(self, data: str) -> None:
        self.raw.get(self.within, self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  as the base class has it
        self.within = ""


@pytest.fixture(scope="module", params=PAGES)
def made(request: pytest.FixtureRequest) -> tuple[sg.Scorecard | sg.ParityReport, str]:
    result = PAGES[request.param]()
    return result, sg.render(result, to="html")


def test_the_same_result_gives_the_same_bytes(made: tuple[sg.Scorecard, str]) -> None:
    result, text = made
    assert sg.render(result, to="html") == text


def test_only_our_script_and_style_are_allowed(made: tuple[sg.Scorecard, str]) -> None:
    _, text = made
    found = Elements(text)
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    *data, ours = (attributes.get("type") for tag, attributes in found.tags if tag == "script")
    assert (set(data), ours) == ({"application/json"}, None)  # data, which does not run, and our script
    for kind, content in (("script-src", found.raw["script"][-1]), ("style-src", found.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_nothing_is_fetched_and_no_attribute_runs(made: tuple[sg.Scorecard, str]) -> None:
    _, text = made
    for tag, attributes in Elements(text).tags:
        assert tag in KNOWN_TAGS
        assert not {"style", "src", "srcset", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
        href = attributes.get("href")
        assert href is None or href.startswith(("#", perfetto.PERFETTO_PAGE))


KNOWN_TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta title style body a header p button nav ul li main section div span h1 h2 h3 ol b strong dl dt "
        "dd svg g rect line text circle path bdi details summary table thead tbody tr th td label input noscript pre "
        "code article footer script fieldset legend defs marker",
    )
)


def test_the_json_inside_is_the_result(made: tuple[sg.Scorecard, str]) -> None:
    result, text = made
    embedded = Elements(text).raw["script"][0]
    assert "<" not in embedded
    assert json.loads(embedded) == json.loads(without_own_paths(result).to_json())


def test_hostile_names_are_text() -> None:
    texts = "".join(Elements(sg.render(cards.hostile_card(), to="html")).texts)
    for name in cards.HOSTILE:
        assert shortened(name, 60) in texts or printable(name)[:20] in texts


@settings(max_examples=25)
@given(st.text(min_size=1, max_size=60))
def test_any_name_is_text(name: str) -> None:
    text = sg.render(cards.hostile_card((name, *cards.HOSTILE[:8])), to="html")
    assert all(tag in KNOWN_TAGS for tag, _ in Elements(text).tags)
    assert shortened(name, 60) in "".join(Elements(text).texts)


@pytest.mark.parametrize("name", PAGES)
def test_a_section_without_content_is_not_drawn(name: str) -> None:
    text = sg.render(PAGES[name](), to="html")
    assert "Nothing to show here" not in text
    assert not re.findall(r"<section[^>]*>\s*(?:<h2[^>]*>[^<]*</h2>)?\s*</section>", text)


def test_advice_fits_what_was_recorded() -> None:
    """What shows more of a trace shows nothing of memory, and a step's figures are not those of a hang."""
    full = cards.full_card()
    assert "record_shapes" not in sg.render(full, to="html")
    without = tuple(msgspec.structs.replace(op, flops=None, bytes=None) for op in full.operations)
    assert "record_shapes" in sg.render(cards.changed(full, operations=without), to="html")
    memory = cards.memory_card()
    for to in ("html", "terminal"):
        text = sg.render(memory, to=to)
        assert "3.7 GiB at the peak" in text
        for other in ("record_shapes", "Throughput", "Hotspots", "Bottleneck", "Findings"):
            assert other not in text.partition('<script type="application/json"')[0]


def test_typical_pages_are_small() -> None:
    assert len(sg.render(cards.full_card(), to="html").encode()) < 400_000


def test_a_huge_card_is_cut_and_says_so() -> None:
    text = sg.render(cards.huge_card(), to="html")
    assert len(text.encode()) < 1_500_000
    assert "2,000 longest of 100,000 operations" in text
    assert "stands for 8 neighbouring ranks" in text
    assert "median of 250 steps" in text
    embedded = json.loads(Elements(text).raw["script"][0])
    assert len(embedded["operations"]) == 2_000
    assert any("the JSON output has them all" in note for note in embedded["notes"])


def test_a_link_shows_the_stretch_with_some_room() -> None:
    source = Source(format="kineto", files=("/runs/a b/träce&x=1.json.gz",))
    address = perfetto.perfetto_link(Span(file=0, start_ns=1_000_000, dur_ns=400), source)
    assert address is not None
    assert address.endswith("9001%2Ftr%25C3%25A4ce%2526x%253D1.json.gz&visStart=999900&visEnd=1000500")


@pytest.mark.parametrize("span", [None, Span(file=3, start_ns=0, dur_ns=1)])
def test_without_a_place_or_file_there_is_no_link(span: Span | None) -> None:
    assert perfetto.perfetto_link(span, Source(format="kineto", files=("a.json",))) is None
    assert (
        perfetto.perfetto_link(Span(file=0, start_ns=0, dur_ns=1), Source(format="kineto", files=("-",)))
        is None
    )


def test_links_name_the_times_of_the_file_itself() -> None:
    import gzip

    card = cards.bundled_card()
    with gzip.open(ROOT / "examples" / "traces" / "gpt_naive.json.gz") as stream:
        events = json.load(stream)["traceEvents"]
    span = card.operations[0].longest
    assert span is not None
    names = {
        e.get("name") for e in events if e.get("ph") == "X" and round(float(e["ts"]) * 1000) == span.start_ns
    }
    assert card.operations[0].name in names


def test_contract_v1_and_other_results_have_no_page(stepgrade: Callable[..., object], tmp_path: Path) -> None:
    run = ROOT / "examples" / "runs" / "gpt_naive.json"
    ran = stepgrade(
        "score",
        run,
        "--contract",
        "v1",
        "--throughput",
        9,
        "--device",
        "gb10",
        "--format",
        "html",
        "-o",
        tmp_path / "x",
    )
    assert (ran.code, "no HTML page" in ran.err) == (2, True)  # type: ignore[attr-defined]
    assert not (tmp_path / "x").exists()


def test_every_result_has_a_page() -> None:
    """What has no charts of its own shows what a document has, with the figures of the terminal."""
    model = str(ROOT / "examples" / "models" / "llama-3-8b.json")
    setup = sg.Setup(device="h100-sxm5-80gb", model=model, plan=sg.Plan(batch=2, seq=4096))
    for result in (sg.estimate(setup), sg.devices(), sg.inspect(ROOT / "examples" / "titan.log")):
        text = report.render(result, to="html")
        assert text.count("<h1") == 1
        assert "<section" in text


def test_the_command_writes_a_file(stepgrade: Callable[..., object], tmp_path: Path) -> None:
    runs = ROOT / "examples" / "runs"
    score = stepgrade("score", runs / "gpt_naive.json", "--format", "html", "-o", tmp_path / "score.html")
    parity = stepgrade(
        "parity",
        runs / "parity_naive.json",
        runs / "parity_fused.json",
        "--format",
        "html",
        "-o",
        tmp_path / "p.html",
    )
    assert (score.code, score.out, parity.code, parity.out) == (0, "", 0, "")  # type: ignore[attr-defined]
    for name in ("score.html", "p.html"):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_terminal_is_not_flooded(monkeypatch: pytest.MonkeyPatch, stepgrade: Callable[..., object]) -> None:
    monkeypatch.setattr("stepgrade.cli.output._is_terminal", lambda: True)
    ran = stepgrade("score", ROOT / "examples" / "runs" / "gpt_naive.json", "--format", "html")
    assert (ran.code, "-o report.html" in ran.err) == (2, True)  # type: ignore[attr-defined]


def test_without_jinja_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    html_page.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=re.escape("stepgrade[html]")):
        sg.render(cards.bare_card(), to="html")
    assert cards.bare_card()._repr_html_() is None
    assert cards.bare_card()._repr_markdown_().startswith("## ")
    html_page.environment.cache_clear()


def test_jinja_is_imported_only_for_pages() -> None:
    run = ROOT / "examples" / "runs" / "gpt_naive.json"
    code = f"import sys; from stepgrade.cli import main; main(['score', {str(run)!r}]); print('jinja2' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"


def test_notebooks_get_a_compact_card() -> None:
    card, parity = cards.full_card(), cards.parity_report()
    for text in (card._repr_html_(), parity._repr_html_()):
        assert text is not None
        assert len(text) < 8_000
        assert not {"script", "style", "svg", "img"} & {tag for tag, _ in Elements(text).tags}
    assert "Claim 1" in str(card._repr_html_())


def test_hostile_names_are_text_in_notebooks() -> None:
    for text in (cards.hostile_card()._repr_html_(), cards.hostile_parity()._repr_html_()):
        assert not {"script", "img", "svg"} & {tag for tag, _ in Elements(str(text)).tags}


def test_a_card_of_the_analysis_is_a_page_too() -> None:
    card = cards.step_profile_card()
    assert sg.render(cards.as_analysis(card), to="html") == sg.render(card, to="html")


def test_arrows_lead_from_waits_to_the_late_rank_and_are_told_in_words() -> None:
    page = sg.render(cards.full_card(), to="html")
    assert page.count('marker-end="url(#drawn-0-arrow)"') == 2  # of ranks 0 and 2, to rank 1; 99 is not drawn
    assert "rank 0 waits 700.0 µs for rank 1, in forward" in page
    assert "rank 2 waits 700.0 µs for rank 99, which is not drawn, in backward" in page
    alone = cards.changed(cards.full_card(), views=(cards.make_view(1),))
    assert "Who waits for whom" not in sg.render(alone, to="html")


def test_other_steps_can_be_chosen() -> None:
    page = sg.render(cards.with_other_steps(), to="html")
    shown = re.findall(r'id="show-drawn-\d"[^>]*> ([^<]*)</label>', page)
    assert shown == ["step 4, in the middle: 2.0 ms", "step 9, slowest: 5.0 ms", "step 3, fastest: 1.5 ms"]
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "show-drawn-" not in sg.render(cards.full_card(), to="html").split("</style>")[1]


def test_phases_can_be_gone_to() -> None:
    page = sg.render(cards.full_card(), to="html")
    for link in re.findall(r'<a href="#(drawn-[a-z0-9-]+)" data-times="[0-9.]+">', page):
        assert page.count(f'id="{link}"') == 1
    assert '<a href="#drawn-0-input"' in page


def test_the_icicle_goes_down_to_kernels_and_modules_tell_memory() -> None:
    page = sg.render(cards.full_card(), to="html")
    assert "sm90_xmma_gemm of aten::mm: 2.0 ms" in page
    assert "leaves 2.8 GiB allocated" in page
    assert "leaves -953.7 MiB allocated" in page
