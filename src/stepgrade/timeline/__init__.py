"""Trace to Timeline: steps, their windows, what launched what, and the ledger of each step."""
