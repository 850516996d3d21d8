"""The accounts of the ledger in the words of the reports."""

from __future__ import annotations

ACCOUNTS = {
    "compute": "computes",
    "exposed_communication": "communicates",
    "exposed_copy": "copies",
    "idle_input": "waits for input",
    "idle_host": "waits for the host",
    "idle_sync": "waits in a sync",
    "unattributed": "not known",
}
