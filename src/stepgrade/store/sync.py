"""Copy runs between a local history and a server."""

from __future__ import annotations

import hashlib

from stepgrade.model.comparison import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import History
from stepgrade.store.remote import RemoteHistory
from stepgrade.store.runs import NewRun, RunOrigin, Selection


def push(local: History, remote: RemoteHistory) -> tuple[int, int]:
    """Send every local run that the server lacks; return how many were sent and how many it had."""
    known = {entry.origin.key for entry in remote.entries()}
    sent = there = 0
    for some in local.batches(Selection()):
        ids = [row.id for row in some]
        cards, origins = local.cards(ids), local.origins(ids)
        for row in some:
            if row.id not in cards:
                continue
            new = _as_new(row, origins.get(row.id), cards[row.id])
            if new.key in known:
                there += 1
                continue
            remote.send_now(new)
            local.set_key(row.id, new.key or "")
            sent += 1
    return sent, there


def pull(local: History, remote: RemoteHistory, which: Selection) -> tuple[int, int]:
    """Add the server's runs that are missing here, oldest first; return how many were new, how many not."""
    missing, here = [], 0
    for entry in remote.entries(which):
        key = entry.origin.key
        if key is not None and local.run_with_key(key) is not None:
            here += 1
        else:
            missing.append(entry)
    for entry in reversed(missing):
        new = _as_new(entry.run, entry.origin, remote.card(entry.run.id))
        if local.run_with_key(new.key or "") is not None:
            here += 1
            continue
        local.add(new)
    return len(missing), here


def _as_new(row: RunRow, origin: RunOrigin | None, card: Scorecard) -> NewRun:
    """Return a stored run as one to add; a run from before there were keys gets one made from its content."""
    key = origin.key if origin else None
    if not key:
        text = f"{row.id} {row.added_at} ".encode() + card.to_json().encode()
        key = f"old-{hashlib.sha256(text).hexdigest()[:32]}"
    return NewRun(
        card=card,
        commit=row.commit,
        branch=row.branch,
        labels=row.labels,
        added_at=row.added_at,
        key=key,
        device_hours=origin.device_hours if origin else None,
        is_decoded=True,
    )
