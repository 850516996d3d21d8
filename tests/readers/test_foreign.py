"""A file that is refused says what it is and what to do, whatever its bytes; nothing of it is run or shown."""

from __future__ import annotations

import bz2
import cProfile
import gzip
import io
import json
import lzma
import marshal
import os
import pickle
import re
import socket
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.errors import BadInput, UnknownFormat
from stepgrade.readers import foreign
from stepgrade.readers.base import Part
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import HEAD_BYTES, ByteSource
from tests.conftest import Ran
from tests.samples import shared

Run = Callable[..., Ran]


def sqlite(*statements: str) -> bytes:
    with sqlite3.connect(":memory:") as database:
        for statement in statements:
            database.execute(statement)
        return database.serialize()


def zipped(name: str, content: bytes = b"x") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.json"), io.BytesIO())
    return file.getvalue()


def saved_arrays(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, np.ones(3))
    return file.getvalue()


def profiled() -> bytes:
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2])
    profile.create_stats()
    return marshal.dumps(profile.stats)  # type: ignore[attr-defined]  # what dump_stats writes


EVENT = {"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
SAFETENSORS = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


def chrome(*, key: str = "", **first: object) -> bytes:
    events = {"traceEvents": [EVENT | first]}
    return json.dumps(events | ({key: {}} if key else {})).encode()


# What it is -> files that are; the real tool wrote them, or its own words are in them.
FILES: dict[str, list[bytes]] = {
    "a report of Nsight Compute": [b"NVR\0" + bytes(200)],
    "a file of nvprof": [sqlite("create table CUPTI_ACTIVITY_KIND_DRIVER (_id_ int)", "create table StringTable (value)")],
    "a history of stepgrade": [sqlite("create table stepgrade_run (id int)")],
    "an SQLite database": [sqlite("create table notes (text)")],
    "a rocprofv3 table other than the kernel trace": [
        b'"Domain","Function","Process_Id"\n"HIP","hipMalloc","1"\n',
        b'"Kind","Direction","Stream_Id"\n',
    ],
    "a table of rocprof": [b"Index,KernelName,gpu-id\n0,k,1\n", b'"Name","Calls","TotalDurationNs"\n'],
    "a summary table of Nsight Systems": [b"Time (%),Total Time (ns),Instances\n50.0,100,2\n"],
    "a table of Nsight Compute": [b'"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"\n'],
    "the output of nvidia-smi": [b"Mon Nov 16\n+-----+\n| NVIDIA-SMI 550.54.15    Driver Version: 550 |\n"],
    "the log of an inference server": [
        b"INFO 03-19 06:27:09 api_server.py:528] vLLM API server version 0.6.3\n",
        b"INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n",
        b"[2026-03-01 08:00:00] The server is fired up and ready to roll!\n",
    ],
    "stacks of py-spy or perf (folded)": [
        b"process 7;<module> (train.py:9);step (train.py:4) 12\nprocess 7;<module> (train.py:9) 3\n"
    ],
    "a flame graph": [b'<svg version="1.1" width="1200" xmlns="http://www.w3.org/2000/svg">'],
    "a profile of Triton's proton (hatchet)": [
        b'[{"children": [], "frame": {"name": "ROOT", "type": "function"}, "metrics": {"time (ns)": 0}}]'
    ],
    "a printed table of torch.profiler's key_averages()": [b"-----\n  Name   Self CPU %   Self CPU\n-----\naten::mm 3 %\n"],
    "a PyTorch execution trace (ExecutionTraceObserver)": [
        b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}'
    ],
    "a table of runs": [b"name,tokens_per_sec,commit\nbase,19000,0a1b2c\nfast,21000,3d4e5f\n"],
    "JSON lines without a training step": [b'{"a": 1}\n{"a": 2}\n'],
    "a recording of perf": [b"PERFILE2\x68" + bytes(90)],
    "a Perfetto trace": [b"\n\x52\x5a\x0c\x08\x01linux.ftrace\x10"],
    "a profile for speedscope": [b'{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":[]}'],
    "a recording of memray": [b"memray\0\x0b\0\0\0"],
    "a profile of cProfile": [profiled()],
    "a memory timeline of PyTorch as a picture": [b'<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n<body>'],
    "a checkpoint of torch.save": [
        zipped("model/data.pkl"),
        zipped("archive/constants.pkl"),
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    ],
    "a Python pickle": [pickle.dumps({"a": 1})],
    "a safetensors file": [len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4)],
    "a GGUF file": [b"GGUF\x03\0\0\0"],
    "an HDF5 file": [b"\x89HDF\r\n\x1a\n" + bytes(20)],
    "a Parquet file": [b"PAR1\x15\0\0"],
    "an array of NumPy": [saved_arrays(np.save)],
    "arrays of NumPy (npz)": [saved_arrays(np.savez)],
    "a zip archive": [zipped("trace.json")],
    "a tar archive": [tarred()],
    "compressed by xz": [lzma.compress(b"{}")],
    "compressed by bzip2": [bz2.compress(b"{}")],
    "compressed by lz4": [b"\x04\x22\x4d\x18\x64\x40\xa7"],
    "a 7z archive": [b"7z\xbc\xaf\x27\x1c\0\x04"],
    "gzipped twice": [gzip.compress(gzip.compress(b"{}"))],
    "a Git LFS pointer, not the file itself": [b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"],
    "a git-annex pointer, not the file itself": [b"/annex/objects/SHA256E-s1--ab.json\n", b"../.git/annex/objects/Xx/a"],
    "a report of stepgrade (HTML)": [b'<!doctype html>\n<html>\n<head>\n<meta name="generator" content="stepgrade 0.2">'],
    "an HTML page": [b"<!DOCTYPE html>\n<html lang=en>", b"\n<html><body>Sign in", b"<!-- saved -->\n<head>"],
    "an XML file": [b'<?xml version="1.0"?><testsuites/>'],
    "a PDF": [b"%PDF-1.7\n"],
    "a picture": [b"\x89PNG\r\n\x1a\n\0\0", b"\xff\xd8\xff\xe0\0"],
    "a program": [b"\x7fELF\x02\x01\x01\0"],
    "text in UTF-16": ['{"a": 1}'.encode("utf-16")],
    "a gate report of stepgrade": [b'{"verdict":"pass","exit_code":0,"source":"a","checks":[]}'],
    "a comparison of stepgrade (parity)": [b'{"apr_runtime":"a","baseline_runtime":"b","parity_achieved":true}'],
    "an inspection of stepgrade": [b'{"source":{},"holds":{},"missing":{},"fitness":[],"fit":true}'],
    "a model's config.json": [b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "model_type": "llama"}'],
    "the index of a checkpoint": [b'{"metadata": {"total_size": 1}, "weight_map": {"w": "a.safetensors"}}'],
    "a Jupyter notebook": [b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'],
    "a trace of VizTracer": [chrome(key="viztracer_metadata", cat="FEE")],
    "a timeline of Horovod": [b'[\n{"name": "process_name", "ph": "M"},\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}]'],
    "a Chrome trace of JAX or TensorFlow (XLA)": [chrome(key="highres-ticks")],
    "a trace without events": [b'{"traceEvents": []}', b"[]", b" [ \n] "],
    "a Chrome trace that PyTorch did not write": [chrome(), b"[" + json.dumps(EVENT).encode() + b"]"],
    "an Ascend trace without PyTorch's operations (msprof)": [
        b'[{"name": "aclnnMatmul", "ph": "X", "ts": "17180.123", "dur": "12.5", "args": {"Task Type": "AI_CORE"}}]'
    ],
    "a recording of a browser's network (HAR)": [b'{"log": {"version": "1.2", "creator": {"name": "x"}, "entries": []}}'],
    "a stepgrade.toml": [b"[gate]\nallow = 0.01\n", b'# ours\n[[budget]]\nmetric = "mfu"\n'],
    "a Python script": [b"import torch\nprint(torch.ones(1))\n", b'"""Train."""\nimport torch\n\nfor step in range(3):\n    print(step, "loss")\n', b"#!/usr/bin/env python\nfrom a import b\nx = 1\n"],
    "a text in Markdown": [b"# Title\n\nSee [this](that). Step 1: loss.\n"],
    "a table of metrics (CSV)": [b"epoch,train_loss\n0,2.5\n", b"_step\tthroughput\n1\t2\n"],
    "a table of timm's benchmarks": [b"model,train_samples_per_sec,train_step_time\nresnet50,100,20\n"],
    "a training log": [
        b"epoch 3, batch 7, loss 2.5 in 3 sec\n",
        b':::MLLOG {"key": "train_loss", "metadata": {"step": 3}}\n',
        b'{"key": "x", "loss": "low", "epoch": "first"}\nstep of the loss\n',
    ],
    "the output of a run that crashed": [b"Traceback (most recent call last):\n  x\nRuntimeError: no\n"],
}  # fmt: skip


def refused(content: bytes) -> BadInput:
    with pytest.raises(BadInput) as caught:
        list(read(content).traces or ())  # a trace is read when it is needed
    return caught.value


def read(content: bytes) -> Part:
    return read_source(ByteSource(content))


def test_every_kind_that_is_known_has_a_file_here() -> None:
    assert {known.what for known in foreign._KNOWN} == set(FILES)


@pytest.mark.parametrize(("what", "content"), [(what, file) for what in FILES for file in FILES[what]])
def test_a_refused_file_says_what_it_is_and_what_to_do(what: str, content: bytes) -> None:
    error = refused(content)
    assert isinstance(error, UnknownFormat)
    assert error.problem == f"is {what}"
    assert error.hint or error.supply


def test_the_command_line_names_its_flags(stepgrade: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(FILES["a model's config.json"][0])
    ran = stepgrade("score", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"stepgrade: {path}: is a model's config.json (give it as --model CONFIG_JSON)\n"


def test_a_directory_without_traces_says_what_is_in_it(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    hint = "give a directory with the trace of each rank, or one trace"
    assert stepgrade("score", tmp_path).err == f"stepgrade: {tmp_path}: contains no trace files ({hint})\n"
    (tmp_path / "run.sqlite").write_bytes(FILES["a file of nvprof"][0])
    ran = stepgrade("score", tmp_path)
    assert ran.code == 2
    assert ran.err.endswith("contains no trace files (run.sqlite is a file of nvprof)\n")


@pytest.mark.parametrize("content", [b" \n\n ", bytes(600), b"\t"])
def test_a_blank_file_says_so(content: bytes) -> None:
    error = refused(content)
    assert error.problem == "contains only blanks or zero bytes"
    assert error.hint


def test_what_is_no_file_says_so(stepgrade: Run, tmp_path: Path) -> None:
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        ran = stepgrade("score", place)
    assert (ran.code, ran.out) == (2, "")
    assert "is a socket or a device (pass a file name, or - to read standard input)" in ran.err


def test_a_file_that_may_not_be_read_says_how_to_mend_it(
    stepgrade: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "trace.json"
    place.write_text("{}")
    place.chmod(0)
    if os.access(place, os.R_OK):  # root may read everything
        monkeypatch.setattr("builtins.open", not_permitted)
    ran = stepgrade("score", place)
    assert (ran.code, ran.err) == (
        2,
        f"stepgrade: {place}: permission denied (make it readable with chmod +r)\n",
    )


def not_permitted(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_real_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("model.pt", "old.pt"):
        assert refused((tmp_path / name).read_bytes()).problem == "is a checkpoint of torch.save"


def test_an_empty_trace_asks_about_the_schedule() -> None:
    head = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n'
    meta = b'{"ph": "M", "name": "process_name", "ts": 1, "pid": 1, "tid": 0, "args": {"name": "python"}}'
    for content in (head + b"]}", head + meta + b"]}"):
        assert "schedule had ended" in str(refused(content))
    assert "stopped before" in str(refused(b""))


def test_text_and_json_of_no_kind_name_every_format() -> None:
    for content, words in (
        (b"hello\n", "is text in an unknown format"),
        (b'{"a": 1}', "is JSON in an unknown format"),
        (b"\0\1\2\3", "is binary in an unknown format"),
    ):
        error = refused(content)
        assert error.problem == words
        for name in ("kineto", "journal", "scorecard", "parity_profile", "step_profile", "metrics", "log"):
            assert name in (error.hint or "")


def test_a_log_that_holds_a_profile_is_read_whatever_it_looks_like() -> None:
    profile = b'{"_profiler":"step_profiler_v2","steps":2,"avg_step_ms":9.5}\n'
    for before in (
        b"<!doctype html>\n",
        b"iteration 1 loss 2\n",
        b"version https://git-lfs.github.com/spec/v1\n",
    ):
        found = read(before + profile).log
        assert found is not None
        assert found.steps == 2


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return (Path.touch, (tmp_path / "ran",))

    error = refused(pickle.dumps({"segments": [Trap()], "total_size": 1}))
    assert "which could run code" in error.problem
    assert not (tmp_path / "ran").exists()


MAGIC = [content[:40] for files in FILES.values() for content in files]


@given(st.sampled_from(MAGIC), st.binary(max_size=300), st.integers(0, 40))
def test_any_bytes_are_refused_in_one_line_of_our_own_words(magic: bytes, rest: bytes, cut: int) -> None:
    canary = b"CANARY-7d1f"
    found = foreign.what_it_is(magic[:cut] + rest + canary)
    assert found is None or (found.what in FILES and "CANARY" not in found.advice)


def test_no_sign_can_look_at_a_text_without_end() -> None:
    """Each repeat has a bound, so that the work on a head is bounded whatever is in it."""
    for known in foreign._KNOWN:
        for sign in known.signs:
            plain = re.sub(rb"\\.|\[[^\]]+\]", b"", sign)
            assert not re.search(rb"[*+]", plain), sign
            assert all(int(most) <= HEAD_BYTES for most in re.findall(rb"\{\d*,(\d+)\}", plain)), sign


@pytest.mark.samples
def test_real_files_of_other_tools() -> None:
    folder = shared("samples")
    expected = {
        "rocprof/*hip_api_trace.csv": {"a rocprofv3 table other than the kernel trace"},
        "metrics/*.tar.gz": {"a tar archive"},
        "memory/timeline/*.html": {"a memory timeline of PyTorch as a picture"},
    }
    for pattern, whats in expected.items():
        files = sorted(folder.glob(pattern))
        assert files, pattern
        for file in files:
            with pytest.raises(UnknownFormat) as caught:
                sg.load(file)
            assert caught.value.problem.removeprefix("is ") in whats, file.name


def test_a_vocabulary_that_holds_our_words_is_no_profile() -> None:
    words = {f"token{number}": number for number in range(5000)} | {"steps": 1, "phases": 2, "work": 3}
    with pytest.raises(UnknownFormat, match="JSON in an unknown format"):
        read_source(ByteSource(json.dumps(words).encode()))
