"""Scorecards written by stepgrade or by the reference, read back as a baseline."""

from __future__ import annotations

from typing import Any

import msgspec

from stepgrade.contract.decode import decode_json
from stepgrade.model import Baseline
from stepgrade.readers.base import Reader
from stepgrade.readers.source import ByteSource

_KEYS = {"grade", "efficiency", "bottleneck"}
# Contract v1 writes 0 for what it does not know.
_ZERO_IS_UNKNOWN = ("throughput_tok_s", "step_time_ms", "wall_coverage")
# Only what is compared is decoded, so that cards of other versions can be read.
_COMPARED = (
    "device",
    "fingerprint",
    "launches_per_step",
    "layers",
    "ledger",
    "operations",
    "peak_memory_bytes",
    "phases",
    "steps",
    "throughput",
)


def recognises(source: ByteSource) -> bool:
    """Tell whether the source is one JSON object with a scorecard's keys."""
    return (source.json_keys or frozenset()) >= _KEYS


def read(source: ByteSource) -> Baseline:
    """Return what the run reached; v1's fields have the same names and meanings in v2."""
    # Both are on the way to a scorecard anyway, but not on the way to a refused file.
    from stepgrade.model.baseline import baseline_of  # noqa: PLC0415
    from stepgrade.model.scorecard import Scorecard  # noqa: PLC0415

    document = decode_json(source.document(), dict[str, Any])
    card = decode_json(
        msgspec.json.encode(
            {
                "grade": "",
                "efficiency": None,
                "bottleneck": "",
                "forward_backward_ratio": None,
                "per_layer_summary": (),
                "hotspot_ops": (),
                "source": {"format": READER.name, "files": [source.name]},
                **{key: document.get(key) or None for key in _ZERO_IS_UNKNOWN},
                **{key: document[key] for key in _COMPARED if document.get(key) is not None},
            }
        ),
        Scorecard,
    )
    return baseline_of(card)


READER = Reader(
    name="scorecard",
    summary="a scorecard's JSON of contract v1 or v2, to compare with",
    recognises=recognises,
    read=read,
)
