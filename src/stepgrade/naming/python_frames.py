"""Python frames of a profiler: whose code they are, file, line and function."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_FRAME = re.compile(r"^(?P<path>.+)\((?P<line>\d+)\): (?P<name>.+)$")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>\w+)(?: of (?:(?P<kind>[\w.]+) object)?)?")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
_HOME = re.compile(r"^(?:[A-Za-z]:)?/(?:home|Users)/[^/]+/|^/root/")
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*|anaconda\d?)(?=/)")
# The profiler leaves out the directory that a module was found in, so that of an installed package only its
# own name is left. These are the packages that training loops are made of.
# fmt: off
_PACKAGES = frozenset((
    "accelerate", "aiohttp", "albumentations", "apex", "av", "bitsandbytes", "colossalai", "composer",
    "cv2", "dask", "datasets", "decord", "deepspeed", "detectron2", "diffusers", "dill", "einops",
    "evaluate", "fairscale", "fairseq", "fastai", "fbgemm_gpu", "fire", "flash_attn", "fsspec",
    "functorch", "gradio", "gymnasium", "huggingface_hub", "hydra", "ignite", "imageio", "ipykernel",
    "IPython", "joblib", "kornia", "librosa", "liger_kernel", "lightning", "lightning_cloud",
    "lightning_fabric", "lightning_utilities", "litgpt", "llmfoundry", "lmdb", "matplotlib", "megatron",
    "mlflow", "mmcv", "mmengine", "monai", "multiprocess", "nemo", "nltk", "numba", "numpy", "omegaconf",
    "onnx", "onnxruntime", "open_clip", "optimum", "pandas", "peft", "PIL", "pkg_resources", "polars",
    "psutil", "pyarrow", "pydantic", "pytorch_lightning", "ray", "regex", "requests", "rich",
    "safetensors", "scipy", "segment_anything", "sentence_transformers", "sentencepiece", "setuptools",
    "sglang", "skimage", "sklearn", "soundfile", "spacy", "stable_baselines3", "stepgrade", "sympy",
    "tensorboard", "tensorboardX", "tensordict", "tiktoken", "timm", "tokenizers", "torch",
    "torch_geometric", "torch_npu", "torch_xla", "torchao", "torchaudio", "torchdata", "torchmetrics",
    "torchrec", "torchsnapshot", "torchtext", "torchtitan", "torchtune", "torchvision", "tornado",
    "tqdm", "traitlets", "transformer_engine", "transformers", "triton", "trl", "typing_extensions",
    "ultralytics", "unsloth", "urllib3", "vllm", "wandb", "webdataset", "xformers", "xfuser", "xgboost",
    "yaml", "zeta", "zmq",
))
# fmt: on
# Names of the standard library that scripts of training runs have as well.
_ALSO_SCRIPTS = frozenset({"profile", "trace", "code", "test", "this"})
_NO_FILE = ("<frozen", "<string>", "<__array_function__", "<eval_with_key>", "<attrs")


class PythonFrame(NamedTuple):
    """A Python function that ran: its file and line as `where`, and its name."""

    where: str | None  # file.py:line; None for what is built in
    name: str  # of the function
    is_user: bool  # the user's code, not a library


@lru_cache(maxsize=100_000)
def read_frame(text: str) -> PythonFrame:
    """Return the frame of a name; the line is where its function begins."""
    match = _FRAME.match(text)
    if match is None:
        built_in = _BUILT_IN.match(text)
        if built_in is None:
            return PythonFrame(None, text, is_user=False)
        kind = built_in["kind"]
        plain = kind is None or kind in {"type", "module"}
        return PythonFrame(None, built_in["name"] if plain else f"{kind}.{built_in['name']}", is_user=False)
    path, line, name = match["path"].replace("\\", "/"), match["line"], match["name"]
    if is_user_path(path):
        return PythonFrame(f"{_HOME.sub('~/', path)}:{line}", name, is_user=True)
    package = _installed_path(path).split("/", 1)[0].removesuffix(".py")
    return PythonFrame(f"{_installed_path(path)}:{line}", f"{package}.{name}", is_user=False)


def _installed_path(path: str) -> str:
    """Return the path from the package on."""
    return _INSTALLED.split(path)[-1].lstrip("/")


def is_user_path(path: str) -> bool:
    """Tell whether a file is the user's own, and not of the standard library or of a package."""
    if path.startswith(_NO_FILE) or "/torchinductor_" in path or _INSTALLED.search(path):
        return False  # generated code
    parts = path.removesuffix(".py").lstrip("./").split("/")
    if path.startswith(("/", "~")) or ":" in parts[0]:
        # A package that is used from its source: .../src/transformers/..., .../pytorch/torch/...
        return not any(
            inner in _PACKAGES and outer in {"src", "pytorch", inner} for outer, inner in pairwise(parts[:-1])
        )
    top = parts[0]
    return top not in _PACKAGES and (top not in sys.stdlib_module_names or top in _ALSO_SCRIPTS)


def without_address(text: str) -> str:
    """Return a frame's name without the address of the object that a built-in method is of."""
    return _ADDRESS.sub("", text)
