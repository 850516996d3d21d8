"""Alerts of a project: when they open and close, who hears of them, and how often that is tried."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from stepgrade.errors import BadOption
from stepgrade.store import History, NewRun, open_store
from stepgrade.store import alerts as module
from stepgrade.store.alerts import RETRIES_S, Alert, Alerts, QuietHours
from tests.store.test_history import card

TODAY = dt.datetime.now(dt.UTC).date()
DAY = dt.timedelta(days=1)


@pytest.fixture
def history(place: str) -> Iterator[History]:
    with open_store(place) as opened:
        yield opened


def fill(history: History, *steps_ms: float, branch: str | None = "main") -> str:
    """Add a run of each step time, every one a little off, and return their fingerprint's digest."""
    count = len(history.runs())
    for number, step_ms in enumerate(steps_ms, start=count):
        off = 0.1 * (number % 3)
        history.add(NewRun(card=card(step_ms + off), commit=f"c{number}", branch=branch))
    return history.runs()[0].digest


def opened(history: History) -> Alert:
    digest = fill(history, *[100.0] * 8, *[120.0] * 8)
    ((alert, event),) = Alerts(history).look("main", digest)
    assert event == "opened"
    return alert


def test_a_regression_opens_one_alert_between_two_commits(history: History) -> None:
    alert = opened(history)
    assert (alert.metric, alert.branch, alert.state, alert.changed_by) == (
        "step_time_ms",
        "main",
        "open",
        "stepgrade",
    )
    assert (alert.last_commit, alert.first_commit) == ("c7", "c8")
    assert alert.first_run == alert.last_run + 1
    assert (alert.level_before, alert.level_after) == (
        pytest.approx(100.1, abs=0.03),
        pytest.approx(120.1, abs=0.03),
    )
    assert alert.change == pytest.approx(20 / 100.1, rel=1e-3)
    assert alert.change == pytest.approx(0.2, abs=0.001)
    # Throughput fell as much: that is the same change. Looking again, or after more runs, opens no other.
    assert Alerts(history).count_open() == 1
    digest = fill(history, *[120.0] * 3)
    assert Alerts(history).look("main", digest) == []
    assert Alerts(history).look("other", digest) == []


def test_a_level_that_is_back_closes_its_alert(history: History) -> None:
    opened(history)
    digest = fill(history, *[115.0] * 8)
    assert Alerts(history).look("main", digest) == []
    assert Alerts(history).count_open() == 1  # better, but nearer to the bad level than to the good one
    first = 1 + max(run.id for run in history.runs())
    fill(history, *[101.0] * 8)
    ((alert, event),) = Alerts(history).look("main", digest)
    assert event == "resolved"
    assert Alerts(history).listed() == [alert]
    assert (alert.state, alert.reason) == ("resolved", f"the level recovered with run {first}")
    assert Alerts(history).count_open() == 0
    assert Alerts(history).listed(["open"]) == []
    assert Alerts(history).listed([]) == []


def test_what_was_over_before_anyone_looked_opens_nothing(history: History) -> None:
    digest = fill(history, *[100.0] * 8, *[120.0] * 8, *[99.0] * 8)
    assert Alerts(history).look("main", digest) == []
    assert Alerts(history).listed() == []


def test_runs_without_a_branch_have_alerts_too(history: History) -> None:
    digest = fill(history, *[100.0] * 8, *[120.0] * 8, branch=None)
    assert Alerts(history).look("main", digest) == []
    ((alert, _),) = Alerts(history).look(None, digest)
    assert alert.branch is None
    assert Alerts(history).look(None, digest) == []


@pytest.mark.parametrize(
    ("state", "reason", "until", "problem"),
    [
        ("closed", "why", None, "unknown state"),
        ("acknowledged", " ", None, "a reason is required"),
        ("waived", "", TODAY, "a reason is required"),
        ("open", "x" * 501, None, "at most 500"),
        ("waived", "why", None, "a day from today"),
        ("waived", "why", TODAY - DAY, "a day from today"),
        ("waived", "why", TODAY + 367 * DAY, "a day from today"),
    ],
)
def test_a_change_of_state_that_is_refused(
    history: History, state: str, reason: str, until: dt.date | None, problem: str
) -> None:
    alert = opened(history)
    with pytest.raises(BadOption, match=problem):
        Alerts(history).change(alert.id, state, reason=reason, who="me", until=until)
    assert Alerts(history).alert(alert.id) == alert


def test_a_waiver_ends_after_its_last_day(history: History) -> None:
    alerts, number = Alerts(history), opened(history).id
    alerts.change(number, "resolved", reason="", who="me", until=TODAY)
    assert [alert.waived_until for alert in alerts.listed()] == [None]
    alerts.change(number, "waived", reason="x" * 500, who="me", until=TODAY + 366 * DAY)
    alerts.change(number, "waived", reason=" a known driver ", who="me", until=TODAY)
    (alert,) = alerts.listed()
    assert (alert.state, alert.reason, alert.changed_by) == ("waived", "a known driver", "me")
    assert alert.waived_until == TODAY.isoformat()
    assert alerts.projects_with_expired(TODAY) == []
    assert alerts.reopen_expired(TODAY) == []
    assert alerts.projects_with_expired(TODAY + DAY) == ["default"]
    assert Alerts(history.in_project("other")).reopen_expired(TODAY + DAY) == []
    assert [alert.id for alert in alerts.reopen_expired(TODAY + DAY)] == [number]
    (alert,) = alerts.listed()
    assert alert.reason == f"the waiver expired on {TODAY}: a known driver"
    assert (alert.state, alert.waived_until) == ("open", None)
    assert Alerts(history.in_project("other")).alert(number) is None


@pytest.mark.parametrize(
    ("quiet", "hour", "due"),
    [
        ((0, 0), "03:30", "03:30"),
        ((22, 6), "21:59", "21:59"),
        ((22, 6), "22:00", "06:00"),
        ((22, 6), "03:30", "06:00"),
        ((22, 6), "06:00", "06:00"),
        ((6, 22), "05:59", "05:59"),
        ((6, 22), "06:30", "22:00"),
    ],
)
def test_quiet_hours(quiet: tuple[int, int], hour: str, due: str) -> None:
    at = dt.datetime.fromisoformat(f"2026-03-01T{hour}:00+00:00")
    found = QuietHours(begin=quiet[0], end=quiet[1]).next_moment(at)
    assert f"{found:%H:%M}" == due
    assert dt.timedelta() <= found - at < DAY


def test_channels_have_limits(history: History) -> None:
    alerts = Alerts(history)
    with pytest.raises(BadOption, match="unknown kind"):
        alerts.add_channel("pigeon", "roof", "", QuietHours())
    for quiet in (QuietHours(begin=24), QuietHours(end=-1), QuietHours(end=24), QuietHours(begin=-1)):
        with pytest.raises(BadOption, match="from 0 to 23"):
            alerts.add_channel("slack", "url", "", quiet)
    numbers = [
        alerts.add_channel("slack", "url", "s", QuietHours(begin=23)) for _ in range(module.MOST_CHANNELS)
    ]
    with pytest.raises(BadOption, match="at most 50"):
        alerts.add_channel("slack", "url", "", QuietHours())
    assert Alerts(history.in_project("other")).channels() == []
    alerts.remove_channel(numbers[0])
    assert [channel.id for channel in alerts.channels()] == numbers[1:]
    assert (alerts.channels()[0].quiet, alerts.channels()[0].secret) == (QuietHours(begin=23), "s")


def test_a_message_is_sent_once_and_tried_again_when_it_fails(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is ours: a claimed message is back after a minute, a failed one after 10, 60, 600 s and so on."""
    start, later = dt.datetime.now(dt.UTC), [0.0]

    def moment_after(*, seconds: float = 0.0) -> str:
        return (start + dt.timedelta(seconds=later[0] + seconds)).isoformat(timespec="seconds")

    alerts, alert = Alerts(history), opened(history)
    number = alerts.add_channel("slack", "url", "", QuietHours())
    for event in ("opened", "opened", "resolved"):
        alerts.announce(alert, event)
    monkeypatch.setattr(module, "moment_after", moment_after)
    monkeypatch.setattr(module, "now", moment_after)
    later[0] = 5.0
    assert alerts.projects_with_due() == ["default"]
    assert alerts.claim_due(9, busy=[number]) == []
    assert alerts.claim_due(0) == []
    ((message, channel, about),) = alerts.claim_due(9)
    assert (message.event, message.tries, channel.kind, about) == ("opened", 0, "slack", alert)
    assert [one.event for one, _, _ in alerts.claim_due(9)] == ["resolved"]
    assert alerts.claim_due(9) == []
    assert alerts.projects_with_due() == []
    assert alerts.channel_states() == {}
    later[0] += 59.0
    assert alerts.claim_due(9) == []
    later[0] += 1.0
    for tries, wait in enumerate(RETRIES_S[1:], start=1):
        ((message, *_),) = alerts.claim_due(9)
        assert (message.event, message.tries) == ("opened", tries)
        alerts.settle(message, "no answer" * 100)
        state = alerts.channel_states()[number]
        assert (state.problem, state.sent_at) == (("no answer" * 100)[:500], None)
        assert state.retry_at == moment_after(seconds=wait)
        later[0] += wait - 1
        assert alerts.claim_due(9) == []  # nor the other message: the channel does not answer
        later[0] += 1
    ((message, *_),) = alerts.claim_due(9)
    alerts.settle(message, "no answer")
    assert alerts.channel_states()[number].retry_at is None
    later[0] += RETRIES_S[-1]
    ((message, *_),) = alerts.claim_due(9)
    assert message.event == "resolved"  # the first has been tried often enough
    alerts.settle(message, None)
    state = alerts.channel_states()[number]
    assert (state.problem, state.retry_at, state.sent_at) == (None, None, moment_after())
    assert alerts.claim_due(9) == []
