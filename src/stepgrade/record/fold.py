"""From the edges of one step to its times: every nanosecond in one phase or in none."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from stepgrade.record.codes import (
    AFTER_FORWARD,
    AGAIN_IN,
    AGAIN_OUT,
    BACKWARD,
    BACKWARD_DONE,
    BWD_IN,
    BWD_OUT,
    EVALUATION,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    GRADIENTS,
    HOST,
    LAYER_BASE,
    LAYER_WIDTH,
    LOSS,
    NONE,
    OPTIMIZER,
    PARAMETER,
)

_CLOSED_BY = {FWD_IN: FWD_OUT, AGAIN_IN: AGAIN_OUT, BWD_IN: BWD_OUT}
_CLOSING = tuple(_CLOSED_BY.values())
# What the time in no phase was, by the main phases before and after it; a step begins after NONE.
_MAIN = frozenset({FORWARD, BACKWARD, OPTIMIZER})
_GAPS = {
    (NONE, FORWARD): HOST,
    (OPTIMIZER, FORWARD): HOST,
    (BACKWARD, FORWARD): HOST,
    (FORWARD, FORWARD): FORWARD,
    (FORWARD, BACKWARD): LOSS,
    (BACKWARD, OPTIMIZER): GRADIENTS,
}


class StepTimes(Struct, kw_only=True):
    """One step: its length, its phases by code, its layers by number."""

    wall_ns: int
    phases_ns: dict[int, int]
    forward_ns: dict[int, int]
    backward_ns: dict[int, int]
    again_ns: dict[int, int]
    evaluated: bool = False


def fold_step(times_ns: list[int], codes: list[int], ends_by: dict[int, int | None]) -> StepTimes:
    """Add up the edges of one step; `ends_by` names the layer whose backward begins where another's ends."""
    phases: dict[int, int] = defaultdict(int)
    layers, gaps = _Layers(ends_by), _Gaps(phases)
    current, since_ns = NONE, times_ns[0]
    for time_ns, code in zip(times_ns, codes, strict=True):
        if code >= LAYER_BASE:
            layers.pass_edge(time_ns, code - LAYER_BASE)
        elif code == BACKWARD_DONE:
            layers.end_backward(time_ns)
        else:
            if current in (NONE, AFTER_FORWARD):
                gaps.open_ns += time_ns - since_ns
            else:
                phases[current] += time_ns - since_ns
            gaps.reach(code)
            current, since_ns = code, time_ns
    gaps.end()
    return StepTimes(
        wall_ns=times_ns[-1] - times_ns[0],
        phases_ns=phases,
        forward_ns=layers.totals_ns[FWD_OUT],
        backward_ns=layers.totals_ns[BWD_OUT],
        again_ns=layers.totals_ns[AGAIN_OUT],
        evaluated=EVALUATION in phases,
    )


class _Gaps:
    """Time in no phase, held until the next main phase tells what it was."""

    def __init__(self, phases_ns: dict[int, int]) -> None:
        self.open_ns = 0
        self._phases_ns = phases_ns
        self._last = NONE

    def reach(self, code: int) -> None:
        """Name the time since the last main phase, when another one begins."""
        if code not in _MAIN:
            return
        if code == OPTIMIZER and self._last != BACKWARD:
            return  # `zero_grad` before forward or backward: they will tell
        self._close(_GAPS.get((self._last, code)))
        self._last = code

    def end(self) -> None:
        """Name what follows the optimizer; what a step without one ends with stays in no phase."""
        self._close(HOST if self._last == OPTIMIZER and FORWARD in self._phases_ns else None)

    def _close(self, name: int | None) -> None:
        if name is not None and self.open_ns:
            self._phases_ns[name] += self.open_ns
        self.open_ns = 0


class _Layers:
    """Layers between their edges; what a backward has to compute again is not counted as backward."""

    def __init__(self, ends_by: dict[int, int | None]) -> None:
        self.totals_ns: dict[int, dict[int, int]] = {edge: defaultdict(int) for edge in _CLOSING}
        self._since: dict[int, dict[int, int]] = {edge: {} for edge in _CLOSING}
        self._backward = self._since[BWD_OUT]
        self._last_gradient: dict[int, int] = {}
        self._ends_by = ends_by

    def pass_edge(self, time_ns: int, code: int) -> None:
        layer, edge = divmod(code, LAYER_WIDTH)
        if edge == PARAMETER:
            self._last_gradient[layer] = time_ns
            return
        closing = _CLOSED_BY.get(edge)
        if closing is None:
            self._close(layer, edge, time_ns)
            return
        if edge == BWD_IN and self._backward:
            for other in [open_ for open_ in self._backward if self._ends_by.get(open_) == layer]:
                self._close(other, BWD_OUT, time_ns)
        self._since[closing][layer] = time_ns

    def end_backward(self, time_ns: int) -> None:
        """Close the layers whose input needs no gradient: the last one of a parameter ends them."""
        for layer, since_ns in list(self._backward.items()):
            self._close(layer, BWD_OUT, max(since_ns, self._last_gradient.pop(layer, time_ns)))

    def _close(self, layer: int, edge: int, time_ns: int) -> None:
        started = self._since[edge].pop(layer, None)
        if started is None:
            return
        self.totals_ns[edge][layer] += time_ns - started
        if edge == AGAIN_OUT:
            for other in self._backward:
                self._backward[other] += time_ns - started
