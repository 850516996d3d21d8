"""Write what predictions of throughput and memory were off into docs/accuracy.md, each into its own section.

  python benchmarks/accuracy.py [throughput] [memory]

A section lies between `<!-- NAME -->` and `<!-- end -->`; what is outside of those named is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]

from tests.hardware.published_memory import cases, predict  # noqa: E402
from tests.hardware.published_throughput import runs  # noqa: E402
from throughput import Group, fit, groups, left_out  # noqa: E402

from stepgrade.statistics import median  # noqa: E402  what it is run from comes first

PAGE = ROOT / "docs" / "accuracy.md"


def throughput() -> str:
    """Return the errors of throughput, each project predicted by rates fitted to all others."""
    return throughput_table(groups(left_out(lambda run: run.project, fit(runs()))))


def throughput_table(rows: Iterable[Group]) -> str:
    """Return groups of runs as a table."""
    lines = ["| project, kind, device, precision | runs | median error | 90th percentile | bias |"]
    lines.append("|---|---|---|---|---|")
    for name, count, middle, ninth, bias in sorted(rows, key=lambda row: (row.name != "all", row.name)):
        lines.append(f"| {name} | {count} | {middle:.0%} | {ninth:.0%} | {bias:+.0%} |")
    return "\n".join(lines)


def memory() -> str:
    """Return the errors of memory by method and source."""
    errors: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for case in cases():
        if case.measured is None:
            continue
        need = predict(case)
        one = abs(need.bytes / case.measured - 1), need.low <= case.measured <= need.high
        for source in ("all", case.row["source"]):
            errors.setdefault((case.plan.method, source), []).append(one)
    lines = [
        "| method, source | runs | median error | 90th percentile | in the band |",
        "|---|---|---|---|---|",
    ]
    for (method, source), found in sorted(errors.items()):
        off = sorted(error for error, _ in found)
        held = sum(is_held for _, is_held in found) / len(found)
        figures = f"{median(off):.1%} | {off[int(0.9 * (len(off) - 1))]:.1%} | {held:.0%}"
        lines.append(f"| {method}, {source} | {len(found)} | {figures} |")
    return "\n".join(lines)


SECTIONS: dict[str, Callable[[], str]] = {"throughput": throughput, "memory": memory}


def with_section(page: str, name: str, text: str) -> str:
    """Return the page with the text of one section replaced."""
    begin = f"<!-- {name} -->\n"
    before, _, rest = page.partition(begin)
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise SystemExit(f"{PAGE.name}: section {name!r} is missing")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def main() -> None:
    """Rewrite the sections that are named, or all of them."""
    for name in sys.argv[1:] or SECTIONS:
        PAGE.write_text(
            with_section(PAGE.read_text(encoding="utf-8"), name, SECTIONS[name]()), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
