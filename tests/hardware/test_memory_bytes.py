# ruff: noqa: E402  what is not installed skips the file
"""What the memory model says autograd keeps, against what real models keep, to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.activations import layer_activations, loss_memory, outside_layers
from stepgrade.hardware.memory.device import WORKSPACE_BYTES, stage_memory
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.shape import ModelShape
from tests.hardware.saved_tensors import LivePeak, saved_bytes

pytestmark = pytest.mark.slow

BATCH, SEQ = 2, 16
TOKENS = BATCH * SEQ
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH, VOCAB = 64, 4, 2, 16, 96, 101
WIDTHS = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": WIDTH,
    "vocab_size": VOCAB,
    "use_cache": False,
}
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
# What each architecture needs besides, and the bytes of its table of rotations for one value of a head: a value
# takes 2 or 4, and some rotate only a part of each head.
ARCHITECTURES: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({}, 2),
    "mistral": ({"sliding_window": None}, 2),
    "qwen2": ({}, 2),
    "qwen3": ({"head_dim": HEAD_DIM}, 2),
    "gemma": ({"head_dim": HEAD_DIM}, 2),
    "olmo2": ({}, 4),
    "starcoder2": ({"sliding_window": None, **NO_DROPOUT}, 2),
    "phi": ({"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0}, 2 / 2),
    "phi3": ({"pad_token_id": 0, "sliding_window": None}, 2),
    "gpt_neox": ({"num_key_value_heads": HEADS, "hidden_dropout": 0.0, "attention_dropout": 0.0}, 2 / 4),
    "gemma3_text": ({"head_dim": HEAD_DIM}, 2),
}
ATTENTION = {"sdpa": "flash", "eager": "written-out"}


def made(name: str, attention: str = "sdpa", depth: int = 2) -> tuple[Any, ModelShape]:
    """Return a small model of the architecture in bf16, and its shape as read from its own config."""
    config = transformers.AutoConfig.for_model(
        name, **(WIDTHS | ARCHITECTURES[name][0]), num_hidden_layers=depth
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(torch.bfloat16).train(), model_from_config(json.dumps(config.to_dict()))


def kept_by(model: Any) -> int:
    ids = torch.randint(0, VOCAB, (BATCH, SEQ))
    return saved_bytes(model, lambda: model(input_ids=ids, labels=ids))


def predicted(shape: ModelShape, plan: Plan) -> float:
    inside = [(layer_activations(HIDDEN, layer, plan), layer.count) for layer in shape.layers]
    layers = sum(count * (one.per_token * TOKENS + one.fixed) for one, count in inside)
    return layers + outside_layers(shape, plan) * TOKENS


def beside(name: str, shape: ModelShape) -> float:
    """Return what is not an activation of a layer: the loss, the rotations, and what only the CPU does."""
    loss = 4 * VOCAB * TOKENS + 4  # the log of the softmax in fp32, and the count of the tokens
    rotations = 2 * SEQ * HEAD_DIM * ARCHITECTURES[name][1]
    norms = 1 + sum(layer.count * layer.norms for layer in shape.layers)
    # On a CPU a layer norm keeps mean and deviation in bf16, on a GPU in fp32.
    statistics = -4 * norms * TOKENS if shape.layers[0].norm == "layer" else 0
    last_scale = 4 * HIDDEN if shape.layers[0].norm == "gemma" else 0
    return loss + rotations + statistics + last_scale


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_eager_models_keep_what_is_predicted(name: str, attention: str) -> None:
    model, shape = made(name, attention)
    plan = Plan(batch=BATCH, seq=SEQ, kernels="transformers", attention=ATTENTION[attention])
    assert kept_by(model) == predicted(shape, plan) + beside(name, shape)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma"])
def test_compiled_layers_keep_what_is_predicted(name: str) -> None:
    kept = []
    for depth in (2, 3):
        torch._dynamo.reset()
        model, shape = made(name, depth=depth)
        for layer in model.model.layers:
            layer.compile(backend="aot_eager_decomp_partition")  # the partitioner, without a C++ compiler
        kept_by(model)
        kept.append(kept_by(model))
    torch._dynamo.reset()
    plan = Plan(batch=BATCH, seq=SEQ, kernels="compiled")
    assert kept[1] - kept[0] == layer_activations(HIDDEN, shape.layers[0], plan).per_token * TOKENS


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("targets", ["q,v", "q,k,v,o,gate,up,down"])
def test_compiled_layers_with_adapters_keep_what_is_predicted(targets: str) -> None:
    kept = []
    for depth in (2, 3):
        torch._dynamo.reset()
        model, shape = made("llama", depth=depth)
        adapt(model, targets, torch.bfloat16)
        for layer in model.model.layers:
            layer.compile(backend="aot_eager_decomp_partition")
        kept_by(model)
        kept.append(kept_by(model))
    torch._dynamo.reset()
    plan = Plan(batch=BATCH, seq=SEQ, method="lora", rank=8, lora_targets=targets, kernels="compiled")
    assert kept[1] - kept[0] == layer_activations(HIDDEN, shape.layers[0], plan).per_token * TOKENS


class Adapted(torch.nn.Module):
    """A frozen matrix with two thin ones beside it, as PEFT (fp32) and torchtune (bf16) write it."""

    def __init__(self, base: Any, rank: int, dtype: Any, dropout: float) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False, dtype=dtype)
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        result = self.base(x)
        thin = self.up(self.down(self.dropout(x.to(self.down.weight.dtype))))
        return result + thin.to(result.dtype)


def adapt(model: Any, targets: str, dtype: Any) -> None:
    """Freeze a model, and put adapters of rank 8 beside some of its matrices."""
    model.requires_grad_(requires_grad=False)
    model.get_input_embeddings().register_forward_hook(lambda _module, _inputs, out: out.requires_grad_())
    for layer in model.model.layers:
        for name in targets.split(","):
            parent = layer.self_attn if name in "qkvo" else layer.mlp
            setattr(parent, f"{name}_proj", Adapted(getattr(parent, f"{name}_proj"), 8, dtype, 0.0))


@pytest.mark.parametrize("targets", ["q,v", "q,k,v,o", "q,k,v,o,gate,up,down"])
@pytest.mark.parametrize("kernels", ["transformers", "eager"])
def test_adapters_keep_what_is_predicted(kernels: str, targets: str) -> None:
    model, shape = made("llama")
    adapt(model, targets, torch.float32 if kernels == "transformers" else torch.bfloat16)
    plan = Plan(batch=BATCH, seq=SEQ, method="lora", rank=8, lora_targets=targets, kernels=kernels)
    expected = predicted(shape, plan)
    if kernels == "eager":  # the model's norms are written out, whoever wrote the adapters
        norms = sum(layer.count * layer.norms for layer in shape.layers) + 1
        expected += norms * (4 - 2) * HIDDEN * TOKENS
    indices = 8 * TOKENS  # of the embedding, which has no gradient
    assert kept_by(model) == expected + beside("llama", shape) - indices


def upcast(head: Any, x: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(head(x).float(), target)


def upcast_copy(head: Any, x: Any, target: Any) -> Any:
    kept = head(x).float()  # as a model's output keeps its logits while the loss is made of a shifted copy
    loss = torch.nn.functional.cross_entropy(kept.clone(), target)
    loss.logits = kept
    return loss


def plain(head: Any, x: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(head(x), target)


@pytest.mark.parametrize(
    ("name", "loss"), [("upcast", upcast), ("upcast-copy", upcast_copy), ("plain", plain)]
)
def test_the_peak_of_a_loss(name: str, loss: Any) -> None:
    tokens, hidden, vocab = 64, 16, 1000
    head = torch.nn.Linear(hidden, vocab, bias=False, dtype=torch.bfloat16)
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, vocab, (tokens,))
    with LivePeak() as live:
        result = loss(head, x, target)
        result.backward()
    shape = ModelShape(architecture="", hidden=hidden, vocab=vocab, layers=(), tied=False)
    expected = loss_memory(shape, Plan(batch=1, seq=tokens, loss=name)).per_token * tokens
    weights = 2 * vocab * hidden
    assert live.peak == pytest.approx(expected + weights, rel=0.001)


@pytest.mark.parametrize(
    ("depth", "vocab", "checkpointing", "phase"),
    [(3, 512, "none", "loss"), (6, 256, "full", "optimizer"), (3, 8192, "full", "loss")],
)
def test_a_whole_step_is_as_high_as_predicted_and_at_that_moment(
    depth: int, vocab: int, checkpointing: str, phase: str
) -> None:
    """Forward, backward and AdamW of a real model, every storage followed while it lives."""
    batch, seq = 2 if vocab < 8192 else 4, 64
    config = transformers.AutoConfig.for_model(
        "llama",
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        vocab_size=vocab,
        num_hidden_layers=depth,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.to(torch.bfloat16).train()
    if checkpointing == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(0, vocab, (batch, seq))
    peaks = {}
    for _ in range(2):  # the first step makes the optimizer's states
        states = [tensor for state in optimizer.state.values() for tensor in state.values()]
        there = [*model.parameters(), *model.buffers(), *states]
        with LivePeak(*there) as live:
            model(input_ids=ids, labels=ids).loss.backward()
            peaks["loss"], live.peak = live.peak, live.now
            optimizer.step()
            peaks["optimizer"] = live.peak
            optimizer.zero_grad(set_to_none=True)
    plan = Plan(batch=batch, seq=seq, weights="bf16", kernels="transformers", checkpointing=checkpointing)
    found = stage_memory(model_from_config(json.dumps(config.to_dict())), plan, 0)
    fixed = sum(tensor.nbytes for tensor in there)
    assert found.phase == phase == max(peaks, key=lambda name: peaks[name])
    assert found.allocated - WORKSPACE_BYTES == pytest.approx(fixed + max(peaks.values()), rel=0.01)
