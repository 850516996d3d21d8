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


# What the TensorBoard plugin does when it loads a run: the views it shows are made of this.
_TENSORBOARD = """
import sys
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
data = RunProfileData.parse("worker0", 1, sys.argv[1], sys.argv[2])
data.process()
data.analyze()
RunGenerator("worker0", 1, data).generate_run_profile()
"""


class Peer(NamedTuple):
    """A tool: what to install and the script that does its whole analysis."""

    name: str
    packages: tuple[str, ...]
    script: str


PEERS = (
    # pandas 3 breaks HTA on some traces.
    Peer("HTA", ("HolisticTraceAnalysis==0.5.0", "pandas<3"), _HTA),
    # The package that PyPI calls tracelens (0.7.0) is another project; AMD's has no release there.
    Peer("TraceLens", ("TraceLens @ git+https://github.com/AMD-AGI/TraceLens.git",), _TRACELENS),
    Peer("TensorBoard plugin", ("torch-tb-profiler==0.4.3", "tensorboard", "pandas<3"), _TENSORBOARD),
)


def install(peer: Peer, directory: Path) -> Path | None:
    """Return the Python of the peer's environment, made on first use; None if it cannot be installed."""
    home = directory / peer.name.replace(" ", "-")
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        asked = [str(python), "-m", "pip", "install", "--quiet", "--quiet", *peer.packages]
        if subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode:
            return None
        (home / ".installed").touch()
    return python


def command(peer: Peer, python: Path, trace: Path, output: Path) -> list[str]:
    """Return what to run to have `trace` analysed."""
    return [str(python), "-c", peer.script, str(trace), str(output)]
