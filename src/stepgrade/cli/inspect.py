"""Show what SOURCE contains, what cannot be known from it, and how to supply that.

Exit code 3 means that the file contains no measurement.

  stepgrade inspect trace.json.gz
  stepgrade inspect train.log --format json

Formats are found by content; each may be gzipped:
  kineto           PyTorch traces of torch.profiler, of every era; several are the ranks of one run
  nsys             Nsight Systems, exported as SQLite; its processes are the ranks of one run
  rocprof          ROCm: JSON, CSV and rocpd of rocprofv3, and rpd
  xplane           JAX and XLA: .xplane.pb of GPU, TPU or CPU; its devices are the ranks of one run
  xla_trace        trace.json.gz of jax.profiler, if its .xplane.pb is gone
  snapshot         memory snapshots of PyTorch: what held the memory, and why it ran out
  memory_timeline  memory timelines of PyTorch: what held the memory over time, by category
  flight_recorder  dumps of PyTorch's Flight Recorder: which rank a hanging run waits for
  torch_trace      logs of torch.compile (TORCH_TRACE): times, failing guards, graph breaks
  step_profile     step_profiler_v2 or apr_training_profiler_v1 JSON
  journal          the journal of stepgrade's recorder, of a run that was killed or still runs
  parity_profile   ParityProfile JSON: runtime, throughput, launches, time per operation
  metrics          TensorBoard event files, W&B, MLflow folders, CSV, trainer_state.json
  log              a training log: the step lines of its framework, or a step profile among them
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import READING, Parser, add_output_options
from stepgrade.cli.run_options import add_sources, load_run
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK
from stepgrade.inspection import inspect


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_sources(parser)
    parser.add(*READING, group="reading")
    add_output_options(parser)
    parser.show_first("--steps --input-format --format --output")


def run(args: Namespace) -> int:
    """Print the contents; return 3 when nothing was measured."""
    inspection = inspect(load_run(args))
    output.write_result(inspection, args.format, args.output, args.color)
    return EXIT_OK if inspection.fit else EXIT_NOT_MEASURED
