"""The scorecard of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stepgrade import api
from stepgrade.cli import output as out
from stepgrade.cli.options import contract_option, input_options, output_options
from stepgrade.compare.gate import Condition, Decision, decide, parse_condition
from stepgrade.contract import TrainingScorecard, format_training_scorecard_markdown


@click.command(name="score")
@click.argument("source")
@click.option("--device", metavar="KEY", help="The accelerator it ran on, such as rtx-4060-laptop or gb10.")
@click.option(
    "--throughput",
    "throughput_tok_s",
    type=float,
    metavar="TOK_S",
    help="Tokens per second that the run reached.",
)
@click.option(
    "--tokens-per-step", type=float, metavar="N", help="Tokens in one step, to work the throughput out."
)
@click.option(
    "--peak-bw",
    "peak_bw_gb_s",
    type=float,
    metavar="GB_S",
    help="Memory bandwidth, if not the catalogue's.",
)
@click.option(
    "--bytes-per-token", type=float, metavar="B", help="Bytes of memory traffic that one token costs."
)
@click.option("--baseline", metavar="FILE", help="An earlier scorecard (JSON) or profile to compare with.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="WHAT",
    help="Exit with 1 on a regression of this severity or worse (warning, critical), or on this grade or worse "
    "(grade:C). May be given several times.",
)
@contract_option
@input_options
@output_options
def command(
    source: str,
    *,
    baseline: str | None,
    fail_on: tuple[str, ...],
    contract: str,
    input_format: str | None,
    max_bytes: int,
    to: str,
    output: str | None,
    color: str,
    **question: Any,
) -> int:
    r"""Grade the run in SOURCE against what its hardware allows.

    SOURCE is a step profile (JSON), a training log that holds one, plain or gzipped, or - for
    standard input. Without a throughput and a ceiling the run is shown but not graded.

    \b
      stepgrade score profile.json --throughput 194 --device rtx-4060-laptop
      stepgrade score train.log.gz --tokens-per-step 2048 --device gb10
      stepgrade score new.json --baseline old.json --fail-on warning
    """
    conditions = [parse_condition(text) for text in fail_on]
    if contract == "v1":
        card_v1 = api.score_v1(source, baseline=baseline, max_bytes=max_bytes, **question)
        out.write_raw(_text_v1(card_v1, to), output)
        return _gate(card_v1, conditions, comparable=True if baseline else None)
    profile = api.load(source, input_format=input_format, max_bytes=max_bytes)
    before = api.load_baseline(baseline, max_bytes=max_bytes) if baseline is not None else None
    card = api.score(profile, baseline=before, **question)
    page = out.page(color, output)
    out.write(api.render(card, to=to, width=page.width, color=page.color), output)
    return _gate(card, conditions, comparable=bool(card.compared) if baseline else None)


def _text_v1(card: TrainingScorecard, to: str) -> str:
    return card.to_json() + "\n" if to == "json" else format_training_scorecard_markdown(card)


def _gate(
    card: api.Scorecard | TrainingScorecard, conditions: Sequence[Condition], *, comparable: bool | None
) -> int:
    decision: Decision = decide(card.grade, card.regressions, conditions, comparable=comparable)
    for reason in decision.reasons:
        click.echo(f"stepgrade: gate: {reason}", err=True)
    return decision.exit_code
