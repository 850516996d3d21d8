"""Queries over all runs of a project: the table, the best configurations, costs of findings, trends."""

from __future__ import annotations

from math import inf

from msgspec import Struct, structs

from stepgrade.compare.levels import judged_levels
from stepgrade.errors import BadOption, NotMeasured, did_you_mean
from stepgrade.model.comparison import METRICS, LevelChange, Point, RunRow, Trend
from stepgrade.store.history import NEWEST_FIRST, RUN_COLUMNS, History, conditions
from stepgrade.store.runs import KEPT_METRICS, NO_BRANCH, Runs, Selection, in_utc

# Sort keys of the table; each has an index.
SORTS = ("added", "step_time_ms", "throughput_tok_s", "efficiency")
# How many of the newest runs findings and configurations are taken from.
FINDINGS_RUNS = 1_000
GROUPED_RUNS = 20_000


class RunPage(Struct, frozen=True, kw_only=True):
    """A page of runs, and the cursor of the next page; None on the last."""

    runs: tuple[RunRow, ...]
    next: str | None


class Configuration(Struct, frozen=True, kw_only=True):
    """The runs with one fingerprint, and their best metrics."""

    digest: str
    runs: int
    newest: int
    step_time_ms: float | None
    throughput_tok_s: float | None

    @property
    def speed(self) -> tuple[int, float]:
        """Return a sort key: the throughput if known, else the step time."""
        return (1, self.throughput_tok_s) if self.throughput_tok_s else (0, -(self.step_time_ms or inf))


class FindingCost(Struct, frozen=True, kw_only=True):
    """What a rule found in many runs, and its cost in device-hours."""

    rule: str
    severity: str
    claim: str  # in the newest run
    runs: int
    newest: int
    gain_low: float  # the mean share of a step
    gain_high: float
    hours_low: float | None
    hours_high: float | None


def page_of_runs(
    history: History,
    which: Selection,
    *,
    sort: str = "added",
    is_rising: bool = False,
    after: str | None = None,
) -> RunPage:
    """Return a page of at most `which.limit` runs; `after` is the `next` of the previous page.

    Sorted by a metric, runs without it are left out. Raise BadOption for an unknown sort key.
    """
    if sort not in SORTS:
        raise BadOption(f"runs cannot be sorted by {sort!r}", hint=did_you_mean(sort, SORTS))
    limit = which.limit or 50
    where, values = conditions(structs.replace(which, limit=None), history.project)
    column, sign, order = "added_at" if sort == "added" else sort, "<", "desc"
    if is_rising:
        sign, order = ">", "asc"
    if after is not None:
        value, _, number = after.rpartition("~")
        try:
            in_utc(value) if sort == "added" else float(value)
            cursor = value if sort == "added" else float(value), int(number)
        except (ValueError, BadOption):
            raise BadOption("not a valid cursor", field="after") from None
        where = f"{where} and ({column} {sign} ? or ({column} = ? and id {sign} ?))"
        values += [cursor[0], *cursor]
    where = f"{where} and {column} is not null"
    sql = f"select {', '.join(RUN_COLUMNS)} from stepgrade_run {where} "
    sql += f"order by {column} {order}, id {order} limit ?"
    rows = history.database.execute(sql, [*values, limit + 1])
    last = dict(zip(RUN_COLUMNS, rows[limit - 1], strict=True)) if len(rows) > limit else None
    return RunPage(
        runs=tuple(history.as_runs(rows[:limit])),
        next=None if last is None else f"{last[column]}~{last['id']}",
    )


def configurations(history: History, which: Selection) -> list[Configuration]:
    """Return the configurations of the newest runs, newest first."""
    where, values = conditions(structs.replace(which, limit=None), history.project)
    rows = history.database.execute(
        "select digest, count(*), max(id), min(step_time_ms), max(throughput_tok_s) from ("
        f"select id, added_at, digest, step_time_ms, throughput_tok_s from stepgrade_run {where} "
        f"{NEWEST_FIRST} limit ?) as newest group by digest order by max(added_at) desc, max(id) desc",
        [*values, GROUPED_RUNS],
    )
    return [Configuration(**dict(zip(Configuration.__struct_fields__, row, strict=True))) for row in rows]


def finding_costs(history: History, which: Selection) -> list[FindingCost]:
    """Return the findings of the newest runs by rule, most expensive first."""
    where, values = conditions(structs.replace(which, limit=None), history.project)
    limit = min(which.limit or FINDINGS_RUNS, FINDINGS_RUNS)
    rows = history.database.execute(
        "select rule, count(distinct run_id), max(run_id), avg(gain_low), avg(gain_high), "
        "sum(gain_low * device_hours), sum(gain_high * device_hours) from ("
        f"select id, device_hours from stepgrade_run {where} {NEWEST_FIRST} limit ?) as newest "
        "join stepgrade_finding on run_id = newest.id group by rule "
        "order by coalesce(sum(gain_high * device_hours), 0) desc, sum(gain_high) desc, rule",
        [*values, limit],
    )
    found = []
    for rule, runs, newest, low, high, hours_low, hours_high in rows:
        sql = "select claim, severity from stepgrade_finding where run_id = ? and rule = ?"
        claims = history.database.execute(sql, (newest, rule))
        found.append(
            FindingCost(
                rule=rule,
                severity=str(claims[0][1]) if claims else "",
                claim=str(claims[0][0]) if claims else "",
                runs=runs,
                newest=newest,
                gain_low=low,
                gain_high=high,
                hours_low=hours_low,
                hours_high=hours_high,
            )
        )
    return found


def newest_series(history: Runs, metric: str, digest: str, branch: str | None, limit: int) -> list[float]:
    """Return the newest values of a metric for one fingerprint, oldest first."""
    return [
        value for _, value in history.series(metric, Selection(digests=(digest,), branch=branch, limit=limit))
    ]


def count_runs(history: History) -> int:
    """Return the number of runs in the project."""
    sql = "select count(*) from stepgrade_run where project = ?"
    return int(history.database.execute(sql, (history.project,))[0][0])


def branches_of(history: History) -> list[str]:
    """Return up to 100 branches of the project by name, with one index lookup each."""
    found: list[str] = []
    while len(found) < 100:
        sql = "select min(branch) from stepgrade_run where project = ? and branch > ?"
        ((name,),) = history.database.execute(sql, (history.project, found[-1] if found else ""))
        if name is None:
            break
        found.append(str(name))
    return found


def is_better(metric: str, change: float) -> bool:
    """Return whether a change of a metric is an improvement."""
    return change < 0 if METRICS[metric].worse == "up" else change > 0


# Branches that are the main one where a project does not name it.
_SHIPPED = ("main", "master", "trunk")


def default_branch(history: Runs, which: Selection) -> str:
    """Return the main branch of the selected runs: by its name, else that of the newest run."""
    for name in _SHIPPED:
        if history.runs(structs.replace(which, branch=name, limit=1)):
            return name
    newest = history.runs(structs.replace(which, limit=1))
    return (newest[0].branch or NO_BRANCH) if newest else NO_BRANCH


def trend_of(history: Runs, metric: str, which: Selection, allowed: frozenset[str] = frozenset()) -> Trend:
    """Return the trend of the runs that are comparable with the newest of those selected.

    Runs of different branches are different code: without a branch in `which` it is that of the main one.
    """
    if which.branch is None:
        which = structs.replace(which, branch=default_branch(history, which))
    newest = history.runs(structs.replace(which, limit=1))
    if not newest:
        raise NotMeasured("no matching run", where=history.name, hint="stepgrade history list")
    digests: tuple[str, ...] = (newest[0].digest,)
    if allowed and (fingerprint := history.fingerprints().get(newest[0].digest)):
        digests = history.comparable(fingerprint, allowed)
    series = history.series(metric, structs.replace(which, digests=digests))
    points = tuple(Point(id=number, value=value) for number, value in series)
    if not points:
        hint = f"known metrics: {', '.join(KEPT_METRICS)}"
        raise NotMeasured(f"no run has {metric}", where=history.name, hint=hint)
    found = judged_levels(metric, [point.value for point in points])
    # Only these commits are needed, out of possibly 100,000 runs.
    commits = history.commits([points[index].id for new in found for index in (new.index - 1, new.index)])
    return Trend(
        metric=metric,
        branch=which.branch or None,
        digest=newest[0].digest,
        history=history.name,
        points=points,
        changes=tuple(
            LevelChange(
                index=new.index,
                outcome=new.judged.outcome,
                last=points[new.index - 1],
                first=points[new.index],
                last_commit=commits[points[new.index - 1].id],
                first_commit=commits[points[new.index].id],
                before=new.before,
                after=new.after,
                change=new.change,
            )
            for new in found
        ),
    )
