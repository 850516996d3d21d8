"""Why a distributed run hangs: where its ranks are, by the collectives that each of them has called.

Ranks of a group call the same collectives in the same order. The first place where they do not is a mismatch.
Where they do, a rank that has called less than the others is one they wait for, unless it waits itself, in
another group: who is waited for and waits for nobody is where to look. Where all wait, they wait in a circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from stepgrade.model.hang import Difference, FlightCall, FlightRecord, Hang, RankCall
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.units import show_count

_DEFAULT_GROUP = "default_pg"
# Whose inputs, or outputs, have the same sizes on every rank; of others they may differ.
_SAME_INPUTS = frozenset(
    {
        "all_reduce",
        "reduce",
        "all_gather",
        "_all_gather_base",
        "reduce_scatter",
        "_reduce_scatter_base",
        "broadcast",
    }
)


class _Place(NamedTuple):
    """One collective: those of its group, or messages from one rank to another, and its number there."""

    group: str
    peers: tuple[int, int] | None
    sequence: int


class _Calls(NamedTuple):
    """The calls of all ranks, by rank and by place."""

    of_rank: dict[int, list[tuple[_Place, FlightCall]]]
    at: dict[_Place, dict[int, FlightCall]]
    members: dict[str, tuple[int, ...]]  # of each group; () where neither dumps nor calls tell
    listed: frozenset[str]  # groups whose members the dumps list
    reached: dict[tuple[int, str, tuple[int, int] | None], int]  # the highest number that a rank has called

    def missing(self, place: _Place) -> tuple[int, ...]:
        """Return the ranks with a dump that belong to a collective and have not called it."""
        return tuple(
            rank
            for rank in self._wanted(place)
            if rank in self.of_rank
            and self.reached.get((rank, place.group, place.peers), -1) < place.sequence
        )

    def without_dump(self, place: _Place) -> tuple[int, ...]:
        """Return the ranks that belong to a collective and left no dump."""
        return tuple(rank for rank in self._wanted(place) if rank not in self.of_rank)

    def is_alone(self, place: _Place) -> bool:
        """Tell whether one rank alone has called it, in a group whose members are not known."""
        return place.peers is None and place.group not in self.listed and len(self.members[place.group]) == 1

    def _wanted(self, place: _Place) -> tuple[int, ...]:
        members = self.members[place.group]
        if place.peers is None:
            return members
        return tuple(members[peer] for peer in place.peers if peer < len(members))


def profile_of_flight_records(records: Sequence[FlightRecord]) -> Profile:
    """Return a profile that holds no times: only what the dumps of a hanging run's ranks show."""
    calls = sum(len(record.calls) for record in records)
    text = "Dumps of the Flight Recorder tell where ranks are, not how long steps take: nothing is graded."
    return Profile(
        source=Source(
            format="flight_recorder",
            files=tuple(record.file for record in records),
            producer="PyTorch's Flight Recorder",
        ),
        hang=find_hang(records),
        world_size=len(records),
        contents={
            "ranks": show_count(len(records)),
            "collectives": show_count(calls),
            "groups": ", ".join(
                sorted({_name(record, group) for record in records for group in record.descriptions})
            ),
        },
        notes=tuple(_notes(records)),
        warnings=(Note("no_step_times", text, fatal=True),),
    )


def find_hang(records: Sequence[FlightRecord]) -> Hang:
    """Return why the ranks do not go on, or that nothing shows that they do not."""
    ranks = [record.rank for record in records]
    by_rank = dict(enumerate(records))  # their places, if some say nothing or two the same
    if None not in ranks and len(set(ranks)) == len(ranks):
        by_rank = dict(sorted((record.rank or 0, record) for record in records))
    calls = _sort_calls(by_rank)
    names = {
        group: _name(record, group) for record in records for group in (*record.groups, *record.descriptions)
    }
    last_calls = tuple(_last_calls(calls, names))
    if len(records) == 1:
        return Hang(kind="one_rank", last_calls=last_calls)
    found = _find_mismatch(calls, names) or _find_missing(calls, names) or _find_unfinished(calls, names)
    if found is None:
        return Hang(kind="none", last_calls=last_calls)
    return structs.replace(found, last_calls=last_calls)


def _name(record: FlightRecord, group: str) -> str:
    """Return what people call a group."""
    description = record.descriptions.get(group, "")
    return description if description and description != "undefined" else f"group {group}"


def _sort_calls(by_rank: dict[int, FlightRecord]) -> _Calls:
    of_rank: dict[int, list[tuple[_Place, FlightCall]]] = {}
    at: dict[_Place, dict[int, FlightCall]] = defaultdict(dict)
    seen: dict[str, set[int]] = defaultdict(set)
    listed: dict[str, tuple[int, ...]] = {}
    everyone: set[str] = set()  # groups of all ranks
    reached: dict[tuple[int, str, tuple[int, int] | None], int] = {}
    # Messages are numbered by their order, which is known only where no dump has lost its beginning.
    counts_messages = all(record.is_whole for record in by_rank.values())
    for rank, record in by_rank.items():
        listed.update(record.groups)
        everyone.update(group for group, name in record.descriptions.items() if name == _DEFAULT_GROUP)
        numbered: Counter[tuple[str, tuple[int, int], str]] = Counter()
        own = of_rank.setdefault(rank, [])
        for call in record.calls:
            seen[call.group].add(rank)
            number = call.sequence
            if call.peers is not None:
                if not counts_messages:
                    continue
                numbered[call.group, call.peers, call.name] += 1
                number = numbered[call.group, call.peers, call.name]
            place = _Place(call.group, call.peers, number)
            own.append((place, call))
            at[place].setdefault(rank, call)
            key = (rank, call.group, call.peers)
            reached[key] = max(reached.get(key, -1), number)
    members = {
        group: listed.get(group) or tuple(by_rank if group in everyone else sorted(ranks))
        for group, ranks in seen.items()
    }
    return _Calls(of_rank, at, members, frozenset(listed), reached)


def _find_mismatch(calls: _Calls, names: dict[str, str]) -> Hang | None:
    """Return the first collective that ranks call with different kinds, types or sizes."""
    for rank in calls.of_rank:
        for place, call in calls.of_rank[rank]:
            others = calls.at[place]
            if place.peers is not None or next(iter(others)) != rank or len(others) == 1:
                continue  # of each place, looked at once
            for what, values in (
                ("kind", {other: one.name for other, one in others.items()}),
                ("type", {other: one.dtype for other, one in others.items()}),
                ("sizes", {other: one.input_sizes for other, one in others.items()}),
            ):
                compared = what == "kind" or call.name in _SAME_INPUTS
                if compared and len(set(values.values())) > 1:
                    return Hang(
                        kind="mismatch",
                        group=names.get(place.group, place.group),
                        sequence=place.sequence,
                        name=call.name if what != "kind" else None,
                        differ_in=what,
                        differences=tuple(_differences(values, others)),
                    )
    return None


def _differences(values: dict[int, str], calls: dict[int, FlightCall]) -> Iterator[Difference]:
    """Yield what ranks gave, rarest first: it is likelier to be wrong."""
    by_value: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        by_value[value].append(rank)
    for value, ranks in sorted(by_value.items(), key=lambda item: (len(item[1]), item[1])):
        yield Difference(
            ranks=tuple(ranks), value=value or "nothing", where=_most(calls[rank].where for rank in ranks)
        )


def _find_missing(calls: _Calls, names: dict[str, str]) -> Hang | None:
    """Return the ranks that others wait for and that wait for nobody, or the circle in which all wait."""
    by_place: dict[_Place, dict[int, FlightCall]] = defaultdict(dict)
    for rank, own in calls.of_rank.items():
        if own and own[-1][1].state != "completed":
            by_place[own[-1][0]][rank] = own[-1][1]
    wanted = {place: {*calls.missing(place), *calls.without_dump(place)} for place in by_place}
    by_place = {place: at for place, at in by_place.items() if wanted[place] or calls.is_alone(place)}
    if not by_place:
        return None
    waiting_ranks = {rank for at in by_place.values() for rank in at}
    roots = {rank for place in by_place for rank in wanted[place]} - waiting_ranks
    place = max(by_place, key=lambda place: (bool(roots & wanted[place]), len(by_place[place])))
    waiting = by_place[place]
    # Where all that are waited for wait themselves, there is a circle, even if its members are not all known.
    circle = (
        ()
        if roots
        else tuple(_row(at, next(iter(at.values())), p, calls, names) for p, at in by_place.items())
    )
    return Hang(
        kind="deadlock" if circle else "missing_rank",
        group=names.get(place.group, place.group),
        sequence=place.sequence,
        name=_shown(place, next(iter(waiting.values())), calls),
        where=_most(call.where for call in waiting.values()),
        waiting=tuple(waiting),
        missing=tuple(rank for rank in calls.missing(place) if rank in roots),
        without_dump=calls.without_dump(place),
        circle=circle,
    )


def _row(
    ranks: Iterable[int], call: FlightCall, place: _Place, calls: _Calls, names: dict[str, str]
) -> RankCall:
    return RankCall(
        ranks=tuple(ranks),
        group=names.get(place.group, place.group),
        sequence=place.sequence,
        name=_shown(place, call, calls),
        state=call.state,
        where=call.where,
    )


def _find_unfinished(calls: _Calls, names: dict[str, str]) -> Hang | None:
    """Return a collective that all its ranks have called and that has not ended; gloo's have no states."""
    states = {call.state for own in calls.of_rank.values() for _, call in own}
    if "completed" not in states:
        return None
    for own in calls.of_rank.values():
        place, call = own[-1] if own else (None, None)
        if place is None or call is None or call.state == "completed":
            continue
        inside = tuple(rank for rank, other in calls.at[place].items() if other.state != "completed")
        return Hang(
            kind="unfinished",
            group=names.get(place.group, place.group),
            sequence=place.sequence,
            name=_shown(place, call, calls),
            where=_most(calls.at[place][rank].where for rank in inside),
            waiting=inside,
        )
    return None


def _last_calls(calls: _Calls, names: dict[str, str]) -> Iterator[RankCall]:
    """Yield the last call of all ranks, once for those that are at the same one."""
    rows: dict[RankCall, list[int]] = defaultdict(list)
    for rank, own in calls.of_rank.items():
        rows[_row((), own[-1][1], own[-1][0], calls, names) if own else RankCall(ranks=())].append(rank)
    for row, ranks in rows.items():
        yield structs.replace(row, ranks=tuple(ranks))


def _shown(place: _Place, call: FlightCall, calls: _Calls) -> str:
    """Return the name of a call; of a message with the ranks that it goes between."""
    if place.peers is None:
        return call.name
    members = calls.members[place.group]
    ends = [str(members[peer]) if peer < len(members) else "?" for peer in place.peers]
    return f"{call.name} from rank {ends[0]} to rank {ends[1]}"


def _most(lines: Iterable[str | None]) -> str | None:
    """Return the line that most have."""
    known = Counter(line for line in lines if line is not None)
    return known.most_common(1)[0][0] if known else None


def _notes(records: Sequence[FlightRecord]) -> Iterator[Note]:
    ranks = [record.rank for record in records]
    if len(records) == 1:
        text = "One rank's dump shows where it is, not whom it waits for: give those of all ranks."
        yield Note("ranks_missing", text)
    elif None in ranks or len(set(ranks)) < len(ranks):
        text = "The files do not say which rank each is of: they are numbered in their order."
        yield Note("ranks_unnamed", text)
    if not any(call.where for record in records for call in record.calls):
        text = "No line of Python was recorded with the collectives."
        yield Note("no_stacks", text)
    messages = any(call.peers for record in records for call in record.calls)
    if messages and not all(record.is_whole for record in records):
        text = (
            "Messages between two ranks cannot be matched: the buffer has lost the first ones. A larger "
            "TORCH_FR_BUFFER_SIZE keeps them."
        )
        yield Note("messages_lost", text)
