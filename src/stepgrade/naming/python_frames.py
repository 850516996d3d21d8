"""Python frames of a profiler: whose code they are, file, line and function."""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from stepgrade.patterns import regex

_FRAME = regex(r"^(?P<path>.+)\((?P<line>\d+)\): (?P<name>.+)$")
_BUILT_IN = regex(r"^<built-in (?:function|method) (?P<name>\w+)(?: of (?:(?P<kind>[\w.]+) object)?)?")
_ADDRESS = regex(r" at 0x[0-9a-f]+(?=>)")
_HOME = regex(r"^(?:[A-Za-z]:)?/(?:home|Users)/[^/]+/|^/root/")
_INSTALLED = regex(r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*|anaconda\d?)(?=/)")
# The profiler leaves out the directory that a module was found in, so that of an installed package only its
# own name is left. These are the packages that training loops are made of.
_PACKAGE_NAMES = (
    "accelerate aiohttp albumentations apex av bitsandbytes colossalai composer cv2 dask datasets "
    "decord deepspeed detectron2 diffusers dill einops evaluate fairscale fairseq fastai fbgemm_gpu "
    "fire flash_attn fsspec functorch gradio gymnasium huggingface_hub hydra ignite imageio ipykernel "
    "IPython joblib kornia librosa liger_kernel lightning lightning_cloud lightning_fabric "
    "lightning_utilities litgpt llmfoundry lmdb matplotlib megatron mlflow mmcv mmengine monai "
    "multiprocess nemo nltk numba numpy omegaconf onnx onnxruntime open_clip optimum pandas peft PIL "
    "pkg_resources polars psutil pyarrow pydantic pytorch_lightning ray regex requests rich safetensors "
    "scipy segment_anything sentence_transformers sentencepiece setuptools sglang skimage sklearn "
    "soundfile spacy stable_baselines3 stepgrade sympy tensorboard tensorboardX tensordict tiktoken "
    "timm tokenizers torch torch_geometric torch_npu torch_xla torchao torchaudio torchdata "
    "torchmetrics torchrec torchsnapshot torchtext torchtitan torchtune torchvision tornado tqdm "
    "traitlets transformer_engine transformers triton trl typing_extensions ultralytics unsloth urllib3 "
    "vllm wandb webdataset xformers xfuser xgboost yaml zeta zmq"
)
_PACKAGES = frozenset(_PACKAGE_NAMES.split())
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
    parts = path.removesuffix(".py").lstrip("./").split("/")
    if path.startswith(_NO_FILE) or "/torchinductor_" in path or _INSTALLED.search(path):
        is_user = False  # generated code, or an installed package
    elif path.startswith(("/", "~")) or ":" in parts[0]:
        # A package that is used from its source: .../src/transformers/..., .../pytorch/torch/...
        is_user = not any(
            inner in _PACKAGES and outer in {"src", "pytorch", inner} for outer, inner in pairwise(parts[:-1])
        )
    else:
        is_standard = parts[0] in sys.stdlib_module_names and parts[0] not in _ALSO_SCRIPTS
        is_user = parts[0] not in _PACKAGES and not is_standard
    if is_user:
        return PythonFrame(f"{_HOME.sub('~/', path)}:{line}", name, is_user=True)
    installed = _INSTALLED.split(path)[-1].lstrip("/")
    package = installed.split("/", 1)[0].removesuffix(".py")
    return PythonFrame(f"{installed}:{line}", f"{package}.{name}", is_user=False)


def without_address(text: str) -> str:
    """Return a frame's name without the address of the object that a built-in method is of."""
    return _ADDRESS.sub("", text)
