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
    LAYER_BASE,
    LAYER_WIDTH,
    LOSS,
    NONE,
)


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
    phases = _phases(times_ns, codes)
    layers = _Layers(ends_by)
    for time_ns, code in zip(times_ns, codes, strict=True):
        layers.pass_edge(time_ns, code)
    return StepTimes(
        wall_ns=times_ns[-1] - times_ns[0],
        phases_ns=phases,
        forward_ns=layers.forward_ns,
        backward_ns=layers.backward_ns,
        again_ns=layers.again_ns,
        evaluated=EVALUATION in phases,
    )


def _phases(times_ns: list[int], codes: list[int]) -> dict[int, int]:
    edges = [
        (time_ns, code)
        for time_ns, code in zip(times_ns, codes, strict=True)
        if code < LAYER_BASE and code != BACKWARD_DONE
    ]
    totals: dict[int, int] = defaultdict(int)
    for at, (time_ns, code) in enumerate(edges[:-1]):
        until_ns, follower = edges[at + 1]
        if code == AFTER_FORWARD:
            code = {BACKWARD: LOSS, FORWARD: FORWARD}.get(follower, NONE)  # noqa: PLW2901
        if code != NONE:
            totals[code] += until_ns - time_ns
    return dict(totals)


class _Layers:
    """Layers between their edges; what a backward has to compute again is not counted as backward."""

    def __init__(self, ends_by: dict[int, int | None]) -> None:
        self.forward_ns: dict[int, int] = defaultdict(int)
        self.backward_ns: dict[int, int] = defaultdict(int)
        self.again_ns: dict[int, int] = defaultdict(int)
        self._ends_by = ends_by
        self._forward_since: dict[int, int] = {}
        self._again_since: dict[int, int] = {}
        self._backward_since: dict[int, int] = {}

    def pass_edge(self, time_ns: int, code: int) -> None:
        if code < LAYER_BASE:
            if code == BACKWARD_DONE:
                self._end_backward(time_ns)
            return
        layer, edge = divmod(code - LAYER_BASE, LAYER_WIDTH)
        if edge == FWD_IN:
            self._forward_since[layer] = time_ns
        elif edge == FWD_OUT:
            self._close(self._forward_since, self.forward_ns, layer, time_ns)
        elif edge == AGAIN_IN:
            self._again_since[layer] = time_ns
        elif edge == AGAIN_OUT:
            self._end_again(layer, time_ns)
        elif edge == BWD_IN:
            self._begin_backward(layer, time_ns)
        elif edge == BWD_OUT:
            self._close(self._backward_since, self.backward_ns, layer, time_ns)

    def _end_backward(self, time_ns: int) -> None:
        """Close the layers whose input needs no gradient: only the end of backward ends them."""
        for layer in list(self._backward_since):
            self._close(self._backward_since, self.backward_ns, layer, time_ns)

    def _begin_backward(self, layer: int, time_ns: int) -> None:
        for other in list(self._backward_since):
            if self._ends_by.get(other) == layer:
                self._close(self._backward_since, self.backward_ns, other, time_ns)
        self._backward_since[layer] = time_ns

    def _end_again(self, layer: int, time_ns: int) -> None:
        started = self._again_since.pop(layer, None)
        if started is None:
            return
        lasted = time_ns - started
        self.again_ns[layer] += lasted
        for other in self._backward_since:
            self._backward_since[other] += lasted

    def _close(self, since: dict[int, int], totals: dict[int, int], layer: int, time_ns: int) -> None:
        started = since.pop(layer, None)
        if started is not None:
            totals[layer] += time_ns - started
