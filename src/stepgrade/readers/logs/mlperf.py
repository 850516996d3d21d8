"""MLPerf's events, `:::MLLOG` and `:::SYSJSON`: the steps, and the system that ran them."""

from __future__ import annotations

from math import prod

from stepgrade.patterns import regex
from stepgrade.readers.logs.facts import LogHeader, clean
from stepgrade.readers.logs.values import Column, figure_of

# A platform is a number of nodes and a system: a board of NVIDIA's, or a server with its devices.
_NODES = regex(r"^\d{1,5}x(?=[A-Za-z])")
_BOARD = regex(r"\b[DH]GX[ -]?(G?[ABH]\d{2,3})\b")
_ON_BOARD = {"H100": "H100-SXM5-80GB"}  # the variant on such boards
_SERVER = regex(r"x\d{1,2}[x-]?((?:NVIDIA |AMD )?[A-Z]{1,2}\d{2,3}[\w -]{0,30})$")
_MOST_DEVICES = 1 << 24
_SETTINGS = {
    "global_batch_size": "global_batch_size",
    "max_sequence_length": "seq_length",
    "train_samples": "train_samples",
}
# The rate of all devices agrees with epochs and time to this share.
_SAME_RATE = 0.03


class MlperfEvents:
    """Reads the events of a log; facts about the run are kept in its header."""

    def __init__(self, header: LogHeader) -> None:
        self._header = header
        self._evaluated_since: float | None = None
        self._block_since: float | None = None  # when a block began that has no other event
        self._block: float | None = None  # the samples of a block
        self._is_in_block = False
        self._done = 0.0  # samples at the last event with a step
        self._of_epochs: set[str] = set()  # names of counts that are epochs
        self._epochs: tuple[float, float] | None = None  # when they began, and how many

    def row(self, event: dict[str, object]) -> dict[Column, float] | None:
        """Return the step of an event, if it has one."""
        stamp = figure_of(event.get("time_ms"))
        if stamp is None:
            if isinstance(name := event.get("accelerator_model_name"), str):
                self._header.texts["device"] = clean(name.encode())
            counts = [event.get(key) for key in ("number_of_nodes", "accelerators_per_node")]
            sizes = [int(count) for count in counts if isinstance(count, str) and count.isdecimal()]
            if len(sizes) == len(counts) and 0 < prod(sizes) < _MOST_DEVICES:
                self._header.numbers["world"] = float(prod(sizes))
            return None
        first, _ = self._header.event_times or (stamp / 1e3, 0.0)
        self._header.event_times = (first, stamp / 1e3)
        self._read_setting(event)
        batch, done = self._header.numbers.get("global_batch_size"), self._samples_done(event)
        if not batch:
            return None
        known = self._by_rate(event, stamp) if done is None else self._by_samples(event, stamp, done)
        if known is None:
            return None
        done, columns = known
        self._done = done
        return {
            "step": done / batch,
            "time": stamp / 1e3,
            "samples": done,
            "step_samples": batch,
            **columns,
        }

    def _by_samples(
        self, event: dict[str, object], stamp: float, done: float
    ) -> tuple[float, dict[Column, float]] | None:
        """Return the samples so far and what else an event says; None for one that only repeats them."""
        key, value = event.get("key"), event.get("value")
        if key in ("tracked_stats", "train_loss"):
            self._block_since = None
        if key == "tracked_stats" and isinstance(value, dict):
            if (memory := figure_of(value.get("max_memory_usage"))) is not None:
                self._header.numbers["peak_bytes"] = memory * 2.0**30
            rate = figure_of(value.get("throughput"))
            return (done, {"samples_s": rate}) if rate and rate > 0.0 else None
        if key == "train_loss" and (loss := figure_of(value)) is not None:
            return done, {"loss": loss}
        if key in ("block_start", "block_stop"):
            self._is_in_block = key == "block_start"
        if key in ("block_stop", "eval_start") and self._block_since is not None:
            # From here to the next block, or to the end of the evaluation, it trains nothing.
            since, self._block_since = self._block_since, None
            # A block may hold many evaluations, and end with only its first part reported.
            return (done, {"interval_s": max(0.0, stamp - since) / 1e3}) if done > self._done else None
        if key == "block_start" or (key == "eval_stop" and self._is_in_block):
            self._block_since = stamp
        # A block that starts later repeats where the one before it stopped.
        is_start = key in ("block_start", "run_start") and not done
        return (done, {}) if is_start or key in ("block_stop", "run_stop") else None

    def _by_rate(self, event: dict[str, object], stamp: float) -> tuple[float, dict[Column, float]] | None:
        """Return the samples so far by an event that counts epochs, if its rate and its time agree on them.

        Some benchmarks write the rate of one device, or batches instead of samples: those are left out.
        """
        key, value, about = event.get("key"), event.get("value"), event.get("metadata")
        if key in ("block_start", "epoch_start") and isinstance(about, dict):
            epochs = figure_of(about.get("epoch_count", 1.0 if key == "epoch_start" else None))
            self._epochs = None if epochs is None else (stamp, epochs)
        rate = figure_of(value.get("throughput")) if isinstance(value, dict) else None
        if key != "tracked_stats" or self._epochs is None or not rate or rate < 0.0:
            return None
        (since, epochs), self._epochs = self._epochs, None
        samples = epochs * self._header.numbers.get("train_samples", 0.0)
        if abs(rate * (stamp - since) / 1e3 - samples) > _SAME_RATE * samples or not samples:
            return None
        return self._done + samples, {"samples_s": rate}

    def evaluation_s(self, event: dict[str, object]) -> float | None:
        """Return how long the evaluation took that this event ends, if it ends one."""
        stamp = figure_of(event.get("time_ms"))
        if stamp is None:
            return None
        if event.get("key") == "eval_start":
            self._evaluated_since = stamp
        if event.get("key") != "eval_stop" or self._evaluated_since is None:
            return None
        return max(0.0, stamp - self._evaluated_since) / 1e3

    def _samples_done(self, event: dict[str, object]) -> float | None:
        """Return the samples that were trained on up to an event; None where it counts epochs.

        Benchmarks count samples, tokens (GPT-3, as epoch_num) or epochs under the same names.
        """
        key, about = event.get("key"), event.get("metadata")
        if key == "run_start":
            return 0.0
        if not isinstance(about, dict):
            return None
        first, block_size = figure_of(about.get("first_epoch_num")), figure_of(about.get("epoch_count"))
        if key == "block_start":
            self._block = block_size
        elif first is not None:
            first += block_size if block_size is not None else self._block or 0.0
        batch, seq = (self._header.numbers.get(name, 0.0) for name in ("global_batch_size", "seq_length"))
        samples = figure_of(about.get("samples_count"))
        if samples is not None:
            return None if 0.0 < samples < batch else samples
        counts = {name: figure_of(about.get(name)) for name in ("step", "epoch_num")} | {"first": first}
        for name, done in counts.items():
            # A count smaller than a batch counts epochs, and so do all counts of that name.
            if done is not None and 0.0 < done < batch:
                self._of_epochs.add(name)
            if done is not None and name not in self._of_epochs:
                return done / seq if name != "step" and seq and done % seq == 0.0 else done
        return None

    def _read_setting(self, event: dict[str, object]) -> None:
        key, value = event.get("key"), event.get("value")
        if isinstance(value, str) and key == "submission_benchmark":
            self._header.texts.setdefault("model", clean(value.encode()))
        elif isinstance(value, str) and key == "submission_platform":
            # 64xNVIDIA DGX H100, 1xXE9680x8H100-SXM-80GB or 1xMI300X
            named = _NODES.sub("", value)
            if (board := _BOARD.search(named)) is not None:
                named = _ON_BOARD.get(board[1], f"NVIDIA {board[1]}")
            elif (server := _SERVER.search(named)) is not None:
                named = server[1]
            self._header.texts.setdefault("device", clean(named.encode()))
        elif isinstance(key, str) and key in _SETTINGS and (size := figure_of(value)):
            self._header.numbers.setdefault(_SETTINGS[key], size)
