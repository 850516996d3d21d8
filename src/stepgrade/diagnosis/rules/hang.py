"""Rules about runs that hang: which rank the others wait for, and where."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Rule
from stepgrade.model.hang import Hang
from stepgrade.units import show_ranks

_ROWS_SAID = 4


def rank_never_arrived(context: RuleContext) -> Found | None:
    hang = context.profile.hang
    if hang is None or hang.kind != "missing_rank":
        return None
    wait = "waits" if len(hang.waiting) == 1 else "wait"
    waits = f"{show_ranks(hang.waiting).capitalize()} {wait} in {_collective(hang)}{_at(hang.where)}"
    evidence: Evidence = {"waiting": float(len(hang.waiting)), "missing": float(len(hang.missing))}
    if hang.where:
        evidence["where"] = hang.where
    if hang.missing:
        last = next((row for row in hang.last_calls if hang.missing[0] in row.ranks), None)
        after = ""
        if last and last.name:
            called = f"{last.name} {last.sequence} of {last.group}{_at(last.where)}"
            after = f"; the last collective there was {called}"
        claim = f"{waits}, which {show_ranks(hang.missing)} never reached{after}."
    else:
        claim = f"{waits}; {show_ranks(hang.without_dump)} left no dump: it had ended, or was killed."
    return Found("critical", claim, evidence)


def collectives_differ(context: RuleContext) -> Found | None:
    hang = context.profile.hang
    if hang is None or hang.kind != "mismatch":
        return None
    gave = "; ".join(
        f"{row.value} on {show_ranks(row.ranks)}{_at(row.where)}" for row in hang.differences[:_ROWS_SAID]
    )
    claim = f"Ranks differ in the {hang.differ_in} of {_collective(hang)}: {gave}."
    evidence: Evidence = {"sequence": float(hang.sequence or 0), "values": float(len(hang.differences))}
    return Found("critical", claim, evidence)


def ranks_wait_for_each_other(context: RuleContext) -> Found | None:
    hang = context.profile.hang
    if hang is None or hang.kind != "deadlock":
        return None
    waits = "; ".join(
        f"{show_ranks(row.ranks)} in {row.name} {row.sequence} of {row.group}{_at(row.where)}"
        for row in hang.circle[:_ROWS_SAID]
    )
    claim = f"Ranks wait for each other: {waits}."
    return Found("critical", claim, {"ranks": float(len(hang.circle))})


def collective_unfinished(context: RuleContext) -> Found | None:
    hang = context.profile.hang
    if hang is None or hang.kind != "unfinished":
        return None
    claim = (
        f"All ranks of {hang.group} have called {_collective(hang)}{_at(hang.where)}, and it has not ended "
        f"on {show_ranks(hang.waiting)}."
    )
    return Found("critical", claim, {"waiting": float(len(hang.waiting))})


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


def _collective(hang: Hang) -> str:
    return f"{hang.name or 'collective'} {hang.sequence} of {hang.group}"


RULES = (
    Rule(
        name="rank-never-arrived",
        find=rank_never_arrived,
        sees="Ranks wait in a collective that another rank has not called.",
        evidence="who waits, in which collective and line; who is missing, and its last collective",
        fix="Look at what the missing rank does after its last collective: a branch that only some ranks "
        "take, fewer batches than the others (drop_last=True, or Join), an exception that was caught, a host "
        "that is stuck (py-spy dump).",
        wrong_when="the dumps are from a running job: the missing rank was only behind",
        check="All ranks are at the same collective.",
        sources="FR",
    ),
    Rule(
        name="collectives-differ",
        find=collectives_differ,
        sees="Ranks of a group call different collectives, or with different sizes or types.",
        evidence="what each rank called, and where",
        fix="Make every rank of the group call the same collectives in the same order, with the same "
        "sizes and types: look for a condition on the rank or its data before that line.",
        wrong_when="sizes may differ, as in all_to_all under another name",
        check="The ranks agree at that number.",
        sources="FR",
    ),
    Rule(
        name="ranks-wait-for-each-other",
        find=ranks_wait_for_each_other,
        sees="Ranks wait for each other in collectives of different groups.",
        evidence="who waits where",
        fix="Call the collectives of overlapping groups in the same order on all ranks, and sends before the "
        "receives that answer them (batch_isend_irecv).",
        wrong_when="the calls are asynchronous, and the ranks wait later",
        check="No rank waits for one that waits for it.",
        sources="FR",
    ),
    Rule(
        name="collective-unfinished",
        find=collective_unfinished,
        sees="All ranks of a group called a collective that has not finished.",
        evidence="the collective, and the ranks on which it has not finished",
        fix="Check network and device: NCCL_DEBUG=INFO names the links, dmesg has driver errors; a "
        "kernel launched earlier that does not finish also blocks it.",
        wrong_when="the dumps were written while it ran",
        check="It finishes.",
        sources="FR",
    ),
)
