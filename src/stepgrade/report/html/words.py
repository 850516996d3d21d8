"""The words of the page: what accounts, bottlenecks, ceilings and metrics are called for people."""

from __future__ import annotations

ACCOUNTS = {
    "compute": "computes",
    "exposed_communication": "communicates, nothing hides it",
    "exposed_copy": "copies, nothing hides it",
    "idle_input": "waits for input",
    "idle_host": "waits for the host",
    "idle_sync": "waits in a synchronisation",
    "unattributed": "not known",
}
BOTTLENECKS = {
    "transfer": "Copies between host and device",
    "launch": "Launching work from the host",
    "compute": "Arithmetic",
    "memory_bw": "Memory bandwidth",
    "input": "Waiting for input",
    "communication": "Communication",
    "host": "Host work",
    "unknown": "Not known",
}
ROOFS = {"memory": "memory bandwidth", "compute": "arithmetic", "link": "the link between devices"}
BASES = {"data_sheet": "data sheet", "measured": "achievable", "given": "given"}
METRICS = {"throughput_tok_s": "throughput", "step_time_ms": "step time", "wall_coverage": "wall coverage"}
SEVERITIES = {"critical": "critical", "warning": "warning", "info": "info"}
GRADE_MEANINGS = {
    "A": "close to what the hardware allows",
    "B": "good, with room left",
    "C": "well below what the hardware allows",
    "D": "far below what the hardware allows",
    "F": "most of the hardware is not used",
}
# Where each grade begins, in percent of the ceiling that counts.
GRADES_BEGIN = (("F", 0), ("D", 10), ("C", 20), ("B", 40), ("A", 60))
