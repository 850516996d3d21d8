"""Numbers that stand for phases and layer edges, so that the training loop only appends integers."""

from __future__ import annotations

NONE = 0
AFTER_FORWARD = 1  # in no phase either, but inside what called the model, such as an optimizer
INPUT = 2
H2D = 3
D2H = 4
FORWARD = 5
LOSS = 6
BACKWARD = 7
COMMUNICATION = 8
OPTIMIZER = 9
EVALUATION = 10
BACKWARD_DONE = 11  # no phase: ends the layers whose input needs no gradient
GRADIENTS = 12
HOST = 13

PHASE_NAMES = {
    INPUT: "input",
    H2D: "h2d",
    D2H: "d2h",
    FORWARD: "forward",
    LOSS: "loss",
    BACKWARD: "backward",
    COMMUNICATION: "communication",
    OPTIMIZER: "optimizer",
    EVALUATION: "evaluation",
    GRADIENTS: "gradients",
    HOST: "host",
}
# Named by what lies around them, and not worth a line when they take next to nothing.
GAPS = frozenset({"gradients", "host"})
FIRST_FREE_PHASE = 16

# A layer's edge is LAYER_BASE + 8 * layer + one of these.
LAYER_BASE = 4096
LAYER_WIDTH = 8
FWD_IN, FWD_OUT, AGAIN_IN, AGAIN_OUT, BWD_IN, BWD_OUT, PARAMETER = range(7)


def layer_code(layer: int, edge: int) -> int:
    """Return the number of one edge of one layer."""
    return LAYER_BASE + LAYER_WIDTH * layer + edge
