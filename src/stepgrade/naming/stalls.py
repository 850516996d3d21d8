"""What a host does that keeps its device waiting, by the names of what it is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from stepgrade.naming.torch_names import COMPILED, COMPILES, GRAPH_LAUNCH, INPUT, LAUNCH_CALL


class StallCause(StrEnum):
    """Causes of a long gap in the work of a device; a remedy fits one of them."""

    COMPILING = "compiling"
    GRAPH_LAUNCH = "graph launch"
    ALLOCATION = "allocation"
    COLLECTION = "garbage collection"
    INPUT = "input"
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    COMPILED_REGION = "compiled region"
    LAUNCH = "launch"
    OPERATION = "operation"
    PYTHON = "python"
    UNKNOWN = "unknown"


# Of everything that the host is in, the first of these that has a name decides.
_BY_NAME = (
    (StallCause.COMPILING, COMPILES),
    (StallCause.GRAPH_LAUNCH, GRAPH_LAUNCH),
    (
        StallCause.ALLOCATION,
        re.compile(r"^(cu|hip)\w*(Malloc|Free|HostAlloc|HostRegister|MemCreate|MemMap|MemUnmap|MemRelease)"),
    ),
    (StallCause.COLLECTION, re.compile(r"\bgc\b|^collect$|garbage", re.IGNORECASE)),
    (StallCause.INPUT, INPUT),
    (StallCause.INPUT, re.compile(r"DataLoader|DataFetcher|collate|tokeniz", re.IGNORECASE)),
    (
        StallCause.CHECKPOINT,
        re.compile(r"checkpoint(?!_?(function|ed|wrapper|impl))|\bsave\b|^save_", re.IGNORECASE),
    ),
    (
        StallCause.LOGGING,
        re.compile(
            r"^print$|\blogg?(er|ing)\b|(?<!::)\blog(_(metrics?|stats|step|scalars?|dict|images?|loss(es)?))?$|wandb|tensorboard|mlflow|tqdm|\bflush$",
            re.IGNORECASE,
        ),
    ),
    (StallCause.COMPILED_REGION, COMPILED),
    (StallCause.LAUNCH, LAUNCH_CALL),
)


def cause_of_stall(names: Sequence[str]) -> tuple[StallCause, str | None]:
    """Return the cause by the names of what the host is in, innermost first, and the name that shows it."""
    for cause, pattern in _BY_NAME:
        for name in names:
            if pattern.search(name, 0, 250):
                return cause, name
    return StallCause.UNKNOWN, None
