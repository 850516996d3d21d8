"""Tests that measure time: other programs disturb a measurement now and then, a fault disturbs every one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

ATTEMPTS = 8


def measured(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test that measures pass when one of a few attempts does."""

    @functools.wraps(test)
    def attempt(*args: Any, **kwargs: Any) -> None:
        for number in range(1, ATTEMPTS):
            try:
                test(*args, **kwargs)
            except AssertionError:
                time.sleep(0.1 * number)  # for what disturbed it to pass
            else:
                return
        test(*args, **kwargs)

    return attempt
