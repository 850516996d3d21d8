"""The tools that people use today, each in an environment of its own, and what they are asked to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# What TraceAnalysis offers for one rank: load, temporal, kernel, overlap and idle breakdown.
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
"""
_TRACELENS = """
import sys
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
generate_perf_report_pytorch(profile_json_path=sys.argv[1], output_csvs_dir=sys.argv[2])
"""


class Peer(NamedTuple):
    """A tool from PyPI: what to install and the script that does its whole analysis."""

    name: str
    packages: tuple[str, ...]
    script: str


PEERS = (
    # pandas 3 breaks HTA on some traces.
    Peer("HTA", ("HolisticTraceAnalysis==0.5.0", "pandas<3"), _HTA),
    Peer("TraceLens", ("TraceLens==0.7.0",), _TRACELENS),
)


def install(peer: Peer, directory: Path) -> Path:
    """Return the Python of the peer's environment, made on first use."""
    home = directory / peer.name
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *peer.packages], check=True)
        (home / ".installed").touch()
    return python


def command(peer: Peer, python: Path, trace: Path, output: Path) -> list[str]:
    """Return what to run to have `trace` analysed."""
    return [str(python), "-c", peer.script, str(trace), str(output)]
