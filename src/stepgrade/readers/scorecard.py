"""Scorecards written by stepgrade or by the reference, read back as a baseline."""

from __future__ import annotations

from typing import Any

import msgspec

from stepgrade.contract.decode import decode_json
from stepgrade.model.scorecard import Baseline
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_KEYS = {"grade", "efficiency", "bottleneck"}
# Only compared fields are decoded, so that cards of other versions can be read.
_COMPARED = (
    "device",
    "fingerprint",
    "launches_per_step",
    "layers",
    "ledger",
    "operations",
    "peak_memory_bytes",
    "phases",
    "step_time_ms",
    "steps",
    "throughput",
    "throughput_tok_s",
    "wall_coverage",
)


def recognises(source: ByteSource) -> bool:
    """Tell whether the source is one JSON object with a scorecard's keys."""
    return (source.json_keys or frozenset()) >= _KEYS


def read(source: ByteSource) -> Part:
    """Return what the run reached; v1's fields have the same names and meanings in v2."""
    from stepgrade.model.scorecard import Scorecard  # other sources should not wait for its types

    document = decode_json(source.document(), dict[str, Any])
    unstated = dict.fromkeys(
        ("efficiency", "forward_backward_ratio", "step_time_ms", "throughput_tok_s", "wall_coverage")
    )
    stated = {key: document[key] for key in _COMPARED if document.get(key) is not None}
    card = {
        "grade": "",
        "bottleneck": "",
        "per_layer_summary": (),
        "hotspot_ops": (),
        "source": {"format": READER.name, "files": [source.name]},
        **unstated,
        **stated,
    }
    return Part(baseline=Baseline.of(decode_json(msgspec.json.encode(card), Scorecard)))


READER = Reader(
    name="scorecard",
    summary="a scorecard's JSON of contract v1 or v2, to compare with",
    recognises=recognises,
    read=read,
    kind="baseline",
)
