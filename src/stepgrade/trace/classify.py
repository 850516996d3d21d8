"""The kind of each piece of device work, in a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import distinct
from stepgrade.model.events import DeviceEvent, DeviceWork
from stepgrade.naming.work_class import WorkClass, classify

__all__ = ["Classes", "WorkClass", "classify", "classify_work"]

Classes: TypeAlias = NDArray[np.int8]


def classify_work(strings: Sequence[str], work: DeviceWork) -> Classes:
    """Return the class of every piece of device work; what says it is a collective is one."""
    if not len(work.name):
        return np.zeros(0, np.int8)
    used = distinct(work.name)
    table = np.full(len(strings), WorkClass.OTHER, np.int8)
    table[used] = [classify(strings[index]) for index in used.tolist()]
    found = np.where(work.collective >= 0, WorkClass.COMMUNICATION, table[work.name])
    copies = (work.kind != DeviceEvent.KERNEL) & (found != WorkClass.COMMUNICATION)
    return np.where(copies, WorkClass.COPY, found)
