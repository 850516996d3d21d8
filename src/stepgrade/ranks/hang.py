"""Why a distributed run hangs: where its ranks are, by the collectives that each of them has called.

Ranks of a group call the same collectives in the same order. The first call where they do not is a mismatch.
Otherwise the others wait for a rank that has called fewer collectives, unless that rank waits itself in
another group: a rank that is waited for and waits for nobody is the cause. Where all wait, it is a deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.model.ranks import Difference, FlightCall, FlightRecord, Hang, RankCall
from stepgrade.units import show_count

_DEFAULT_GROUP = "default_pg"
# Collectives whose inputs, or outputs, have the same sizes on every rank.
_SAME_INPUTS = (
    *("all_reduce", "reduce", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base"),
    "broadcast",
)


class _Key(NamedTuple):
    """One collective: its group, or the two ends of its message, and its number there."""

    group: str
    peers: tuple[int, int] | None
    sequence: int


class _Calls(NamedTuple):
    """The calls of all ranks, by rank and by collective."""

    of_rank: dict[int, list[tuple[_Key, FlightCall]]]
    at: dict[_Key, dict[int, FlightCall]]
    names: dict[str, str]  # of groups
    members: dict[str, tuple[int, ...]]  # of each group; () where neither dumps nor calls show them
    listed: frozenset[str]  # groups whose members the dumps list
    reached: dict[tuple[int, str, tuple[int, int] | None], int]  # the highest number that a rank has called

    def missing(self, key: _Key) -> tuple[int, ...]:
        """Return the ranks with a dump that belong to a collective and have not called it."""
        return tuple(
            rank
            for rank in self._wanted(key)
            if rank in self.of_rank and self.reached.get((rank, key.group, key.peers), -1) < key.sequence
        )

    def without_dump(self, key: _Key) -> tuple[int, ...]:
        """Return the ranks that belong to a collective and left no dump."""
        return tuple(rank for rank in self._wanted(key) if rank not in self.of_rank)

    def is_alone(self, key: _Key) -> bool:
        """Return whether one rank alone has called it, in a group whose members are not known."""
        return key.peers is None and key.group not in self.listed and len(self.members[key.group]) == 1

    def _wanted(self, key: _Key) -> tuple[int, ...]:
        members = self.members[key.group]
        if key.peers is None:
            return members
        return tuple(members[peer] for peer in key.peers if peer < len(members))

    def described(self, key: _Key, call: FlightCall) -> dict[str, Any]:
        """Return group, number and name of a call; for a message with the ranks that it goes between."""
        name = call.name
        if key.peers is not None:
            members = self.members[key.group]
            ends = [str(members[peer]) if peer < len(members) else "?" for peer in key.peers]
            name = f"{call.name} from rank {ends[0]} to rank {ends[1]}"
        return {"group": self.names.get(key.group, key.group), "sequence": key.sequence, "name": name}

    def row(self, ranks: Iterable[int], key: _Key, call: FlightCall) -> RankCall:
        """Return the call that these ranks are in."""
        return RankCall(ranks=tuple(ranks), **self.described(key, call), state=call.state, where=call.where)


def profile_of_flight_records(records: Sequence[FlightRecord]) -> Profile:
    """Return a profile without times: only what the dumps of a hanging run's ranks show."""
    calls = [call for record in records for call in record.calls]
    ranks = [record.rank for record in records]
    notes = []
    if len(records) == 1:
        text = "One rank's dump shows where it is, not whom it waits for: give those of all ranks."
        notes.append(Note("ranks_missing", text))
    elif None in ranks or len(set(ranks)) < len(ranks):
        text = "The files do not say which rank each is of: they are numbered in their order."
        notes.append(Note("ranks_unnamed", text))
    if not any(call.where for call in calls):
        notes.append(Note("no_stacks", "No line of Python was recorded with the collectives."))
    if any(call.peers for call in calls) and not all(record.is_whole for record in records):
        text = (
            "Messages between two ranks cannot be matched: the buffer has lost the first ones. A larger "
            "TORCH_FR_BUFFER_SIZE keeps them."
        )
        notes.append(Note("messages_lost", text))
    text = "Dumps of the Flight Recorder tell where ranks are, not how long steps take: nothing is graded."
    groups = {_name(record, group) for record in records for group in record.descriptions}
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
            "collectives": show_count(len(calls)),
            "groups": ", ".join(sorted(groups)),
        },
        notes=tuple(notes),
        warnings=(Note("no_step_times", text, fatal=True),),
    )


def find_hang(records: Sequence[FlightRecord]) -> Hang:
    """Return why the ranks hang, or that the dumps show no hang."""
    ranks = [record.rank for record in records]
    by_rank = dict(enumerate(records))  # their order, if some have no number or two the same
    if None not in ranks and len(set(ranks)) == len(ranks):
        by_rank = dict(sorted((record.rank or 0, record) for record in records))
    calls = _sort_calls(by_rank)
    # The last call of all ranks, once for those that are at the same one.
    rows: dict[RankCall, list[int]] = defaultdict(list)
    for rank, own in calls.of_rank.items():
        rows[calls.row((), *own[-1]) if own else RankCall(ranks=())].append(rank)
    last_calls = tuple(structs.replace(row, ranks=tuple(same)) for row, same in rows.items())
    if len(records) == 1:
        return Hang(kind="one_rank", last_calls=last_calls)
    found = _find_mismatch(calls) or _find_missing(calls) or _find_unfinished(calls) or Hang(kind="none")
    return structs.replace(found, last_calls=last_calls)


def _name(record: FlightRecord, group: str) -> str:
    """Return the displayed name of a group."""
    description = record.descriptions.get(group, "")
    return description if description and description != "undefined" else f"group {group}"


def _sort_calls(by_rank: dict[int, FlightRecord]) -> _Calls:
    of_rank: dict[int, list[tuple[_Key, FlightCall]]] = {}
    at: dict[_Key, dict[int, FlightCall]] = defaultdict(dict)
    seen: dict[str, set[int]] = defaultdict(set)
    listed: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    everyone: set[str] = set()  # groups of all ranks
    reached: dict[tuple[int, str, tuple[int, int] | None], int] = {}
    # Messages are numbered by their order, which is known only where no dump has lost its beginning.
    counts_messages = all(record.is_whole for record in by_rank.values())
    for rank, record in by_rank.items():
        listed.update(record.groups)
        names.update({group: _name(record, group) for group in (*record.groups, *record.descriptions)})
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
            key = _Key(call.group, call.peers, number)
            own.append((key, call))
            at[key].setdefault(rank, call)
            queue = (rank, call.group, call.peers)
            reached[queue] = max(reached.get(queue, -1), number)
    members = {
        group: listed.get(group) or tuple(by_rank if group in everyone else sorted(ranks))
        for group, ranks in seen.items()
    }
    return _Calls(of_rank, at, names, members, frozenset(listed), reached)


def _find_mismatch(calls: _Calls) -> Hang | None:
    """Return the first collective that ranks call with different kinds, types or sizes."""
    for rank, own in calls.of_rank.items():
        for key, call in own:
            others = calls.at[key]
            if key.peers is not None or next(iter(others)) != rank or len(others) == 1:
                continue  # each collective is compared once
            for what, field in (("kind", "name"), ("type", "dtype"), ("sizes", "input_sizes")):
                by_value: dict[str, list[int]] = defaultdict(list)
                for other, theirs in others.items():
                    by_value[getattr(theirs, field)].append(other)
                if len(by_value) == 1 or not (what == "kind" or call.name in _SAME_INPUTS):
                    continue
                # The rarest value is first: it is likelier to be wrong.
                differences = tuple(
                    Difference(
                        ranks=tuple(ranks),
                        value=value or "nothing",
                        where=_most(others[each].where for each in ranks),
                    )
                    for value, ranks in sorted(by_value.items(), key=lambda item: (len(item[1]), item[1]))
                )
                return Hang(
                    kind="mismatch",
                    **calls.described(key, call) | ({"name": None} if what == "kind" else {}),
                    differ_in=what,
                    differences=differences,
                )
    return None


def _find_missing(calls: _Calls) -> Hang | None:
    """Return the ranks that others wait for and that wait for nobody, or the circle in which all wait."""
    by_key: dict[_Key, dict[int, FlightCall]] = defaultdict(dict)
    for rank, own in calls.of_rank.items():
        if own and own[-1][1].state != "completed":
            by_key[own[-1][0]][rank] = own[-1][1]
    wanted = {key: {*calls.missing(key), *calls.without_dump(key)} for key in by_key}
    by_key = {key: at for key, at in by_key.items() if wanted[key] or calls.is_alone(key)}
    if not by_key:
        return None
    waiting_ranks = {rank for at in by_key.values() for rank in at}
    roots = {rank for key in by_key for rank in wanted[key]} - waiting_ranks
    key = max(by_key, key=lambda key: (bool(roots & wanted[key]), len(by_key[key])))
    waiting = by_key[key]
    # If all that are waited for wait themselves, there is a circle, even if not all its members are known.
    circle = () if roots else tuple(calls.row(at, k, next(iter(at.values()))) for k, at in by_key.items())
    return Hang(
        kind="deadlock" if circle else "missing_rank",
        **calls.described(key, next(iter(waiting.values()))),
        where=_most(call.where for call in waiting.values()),
        waiting=tuple(waiting),
        missing=tuple(rank for rank in calls.missing(key) if rank in roots),
        without_dump=calls.without_dump(key),
        circle=circle,
    )


def _find_unfinished(calls: _Calls) -> Hang | None:
    """Return a collective that all its ranks have called and that has not ended; gloo's have no states."""
    if all(call.state != "completed" for own in calls.of_rank.values() for _, call in own):
        return None
    for own in calls.of_rank.values():
        if not own or own[-1][1].state == "completed":
            continue
        key, call = own[-1]
        inside = tuple(rank for rank, other in calls.at[key].items() if other.state != "completed")
        where = _most(calls.at[key][rank].where for rank in inside)
        return Hang(kind="unfinished", **calls.described(key, call), where=where, waiting=inside)
    return None


def _most(lines: Iterable[str | None]) -> str | None:
    """Return the most frequent line."""
    known = Counter(line for line in lines if line is not None)
    return known.most_common(1)[0][0] if known else None
