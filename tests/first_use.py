"""Eight threads that use something first, at the same moment, in as many processes as are asked for.

`python -m tests.first_use CASE PROCESSES PLACE` prints how many processes ended in which way. Each is a fork of this
one, which has imported what the case needs and used none of it, and so has built no decoder.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import stepgrade as sg
from stepgrade.decoding import _DECODERS
from tests.conftest import ROOT

THREADS = 8
ENDS_WITHIN_S = 120


def _read_card(place: str) -> Callable[[], object]:
    text, kind = Path(place).read_bytes(), sg.Scorecard
    return lambda: kind.from_json(text)


def _score(place: str) -> Callable[[], object]:
    score = sg.score
    return lambda: score(place)


def _read_history(place: str) -> Callable[[], object]:
    def read() -> object:
        with sg.history(place, create=False) as history:
            rows = history.runs()
            return rows, history.fingerprints(), history.cards([row.id for row in rows])

    return read


def _read_settings(place: str) -> Callable[[], object]:
    from stepgrade.hardware.catalogue import read_device

    return lambda: (
        sg.load_config(place),
        read_device(str(ROOT / "examples/my-device.toml")),
    )


CASES = {"card": _read_card, "score": _score, "history": _read_history, "settings": _read_settings}


def at_once(call: Callable[[], object]) -> list[object]:
    """Return what eight threads get that call at the same moment: a result or an exception each."""
    barrier, got = threading.Barrier(THREADS), list[object]()

    def use() -> None:
        barrier.wait()
        try:
            got.append(call())
        except Exception as error:  # noqa: BLE001  what is wrong is told to who asked
            got.append(error)

    threads = [threading.Thread(target=use) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENDS_WITHIN_S)
    return got


def _outcome(call: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        got = at_once(call)
        code = 0 if len(got) == THREADS and all(one == got[0] for one in got) else 2
        if code:
            print(*got, file=sys.stderr, sep="\n")
    finally:
        os._exit(code)


if __name__ == "__main__":
    case, processes, where = sys.argv[1:]
    use_first = CASES[case](where)
    if case == "card":
        assert not _DECODERS, "what is to be built first was built before"
    print(dict(Counter(_outcome(use_first) for _ in range(int(processes)))))
