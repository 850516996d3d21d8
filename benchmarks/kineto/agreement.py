"""How far stepgrade and HolisticTraceAnalysis agree on real traces, and what makes the difference.

Rows of compute / not compute / idle for each trace, in percent: HTA's temporal breakdown with its best
settings; the same without host events that HTA takes for device work (they carry a stream), where there are
any; the same counted by stepgrade HTA's way; stepgrade's own ledger. HTA's way is: from the first to the last
event on the device, only events whose launch was recorded, copies within the device and memsets not being
compute. Where HTA's row and that differ, one of them is wrong; what makes the ledger differ stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from generate import DEFAULT_SAMPLE
from peers import PEERS, install

from stepgrade.errors import StepgradeError
from stepgrade.model.events import DeviceEvent
from stepgrade.model.profile import Profile
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import WorkClass
from stepgrade.readers.ranks import read_ranks
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.timeline import Timeline, build_timeline
from stepgrade.trace.profile import analyse_rank

_POINT = 0.01
_HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
symbols = analysis.t.symbol_table.get_sym_table()
names = ("compute_time(us)", "non_compute_time(us)", "idle_time(us)")
def shares():
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return [float(row[name]) / float(row["kernel_time(us)"]) for name in names]
found = [shares()]
frame = analysis.t.traces[0]
device = frame["cat"].map(lambda cat: symbols[cat].lower()[-6:] in ("kernel", "memcpy", "memset"))
stray = frame["stream"].ne(-1) & ~device
analysis.t.traces[0] = frame[~stray]
found.append(shares() if stray.any() else None)
print(json.dumps([*found, int(stray.sum())]))
"""


class Shares(NamedTuple):
    """Where the time of a device goes."""

    compute: float
    other: float
    idle: float

    def __str__(self) -> str:
        return "".join(f"{100 * share:7.1f}" for share in self)

    def far_from(self, other: Shares) -> bool:
        """Tell whether one of the shares differs by more than a point."""
        return any(abs(a - b) > _POINT for a, b in zip(self, other, strict=True))


class Told(NamedTuple):
    """What HTA says: of all that it takes for device work, and of real device work, if that is less."""

    shares: Shares
    of_device: Shares | None
    stray: int


def ask_hta(python: Path, trace: Path) -> Told | str:
    """Return what HTA says, or the last line of its failure."""
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    ran = subprocess.run(
        [str(python), "-c", _HTA, str(trace)], capture_output=True, text=True, env=environment, check=False
    )
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or ["failed"])[-1][:60]
    shares, of_device, stray = json.loads(ran.stdout.strip().splitlines()[-1])
    return Told(Shares(*shares), Shares(*of_device) if of_device else None, stray)


def stretch_shares(line: Timeline, chosen: Mask, *, inner_copies_compute: bool) -> Shares:
    """Return the shares of the time from the first to the last of the chosen events."""
    work = line.trace.work
    compute = (work.kind == DeviceEvent.KERNEL) & (line.classes != WorkClass.COMMUNICATION)
    if inner_copies_compute:
        compute |= (work.kind == DeviceEvent.COPY_D2D) | (work.kind == DeviceEvent.MEMSET)
    start, end = work.start_ns, work.start_ns + work.dur_ns
    busy = iv.union(start[chosen], end[chosen])
    computing = iv.total_ns(iv.union(start[chosen & compute], end[chosen & compute]))
    total = int(end[chosen].max() - start[chosen].min())
    return Shares(computing / total, (iv.total_ns(busy) - computing) / total, 1 - iv.total_ns(busy) / total)


def ledger_shares(profile: Profile) -> Shares | None:
    """Return the ledger of the steady steps in HTA's three classes."""
    if profile.ledger is None:
        return None
    shares = profile.ledger.shares()
    moved = shares["exposed_communication"] + shares["exposed_copy"]
    return Shares(shares["compute"], moved, 1 - shares["compute"] - moved)


def reasons(line: Timeline, launched: Mask, ours: Shares) -> list[str]:
    """Name what changes a share by more than a point, each alone."""
    everything = np.ones(len(launched), np.bool_)
    as_hta = stretch_shares(line, launched, inner_copies_compute=False)
    unlaunched = stretch_shares(line, everything, inner_copies_compute=False)
    found = []
    if unlaunched.far_from(as_hta):
        found.append(f"{int((~launched).sum())} events without a launch")
    if stretch_shares(line, everything, inner_copies_compute=True).far_from(unlaunched):
        found.append("copies within the device")
    if ours.far_from(stretch_shares(line, everything, inner_copies_compute=True)):
        found.append("steady steps only")
    return found


def compare(trace: Path, python: Path) -> None:
    """Print the rows of one trace; nothing for one without device work."""
    try:
        line = build_timeline(next(read_ranks([trace])))
    except StepgradeError:
        return
    work = line.trace.work
    ours = ledger_shares(analyse_rank(line.trace).profile)
    if not len(work.name) or ours is None or not line.windows.on_device:
        return
    launched = line.links.call >= 0
    told = ask_hta(python, trace)
    print(f"{trace.name[:52]:54}HTA      {told if isinstance(told, str) else told.shares}")
    if isinstance(told, Told) and told.of_device:
        print(f"{'':54}HTA      {told.of_device}   without {told.stray} events of the host")
    if launched.any():
        _print_ways(line, launched, told)
    print(f"{'':54}ledger   {ours}   {', '.join(reasons(line, launched, ours)) if launched.any() else ''}")


def _print_ways(line: Timeline, launched: Mask, told: Told | str) -> None:
    as_hta = stretch_shares(line, launched, inner_copies_compute=False)
    apart = isinstance(told, Told) and as_hta.far_from(told.of_device or told.shares)
    print(f"{'':54}HTA's way{as_hta}{'   differs from HTA' if apart else ''}")


def main() -> None:
    """Compare all traces of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT_SAMPLE.parent)
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "stepgrade-peers")
    options = parser.parse_args()
    python = install(PEERS[0], options.environments)
    if python is None:
        parser.exit(1, "HTA could not be installed\n")
    print(f"{'':63}{'compute':>7}{'other':>7}{'idle':>7}")
    for trace in sorted(options.folder.glob("*.json*")):
        compare(trace, python)


if __name__ == "__main__":
    main()
