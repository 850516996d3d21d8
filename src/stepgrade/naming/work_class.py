"""What work a kernel or operation does, for which part of a model and in which direction, by its name."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

from stepgrade.patterns import regex


class WorkClass(IntEnum):
    """Kinds of work."""

    COMMUNICATION = 0
    ATTENTION = 1
    NORM = 2
    CONVOLUTION = 3
    EMBEDDING = 4
    GEMM = 5
    SOFTMAX = 6
    OPTIMIZER = 7
    POOLING = 8
    INDEXING = 9
    COPY = 10
    REDUCTION = 11
    ELEMENTWISE = 12
    OTHER = 13

    @property
    def label(self) -> str:
        """Return the name that reports use."""
        return self.name.lower()


# Classes whose work is matrix products, of one kind or another.
MATMULS = (WorkClass.ATTENTION, WorkClass.CONVOLUTION, WorkClass.GEMM)

# The first rule that fits decides: cudnn::bn is a norm before it is cudnn, cutlass<flash> is attention.
# Plain words are looked for first: they cost a tenth of a pattern. Patterns are compiled when first needed.
_WORDS_AND_PATTERNS: tuple[tuple[WorkClass, str, str | None], ...] = (
    # FSDP's work before and after collectives is copying, whatever its name.
    (WorkClass.COPY, "fsdp::all_gather_copy fsdp::chunk_cat fsdp::split_with_sizes", None),
    (
        WorkClass.COMMUNICATION,
        (
            "nccl rccl hccl hcom_ oneccl msccl multimem shmem symm_mem symmetric_memory deep_ep "
            "cross_device_reduce quickreduce lamport userbuffers c10d record_param_comms "
            "collective-permute"
        ),
        (
            r"^(send|recv)([-.]|$)|all[_-]?(reduce|gather|to[_-]?all)|reduce[_-]?scatter|^(gloo|mpi|ucc|xccl):"
            r"|^memcpy (ptop|peer)"
            # Tokens on their way to experts and back: DeepEP, pplx, MORI, TensorRT-LLM.
            r"|\b(inter|intra)node(_ll)?::|\bep_?(dispatch|combine)|moe_?(a2a|comm)|a2a_?(dispatch|combine)"
            r"|notify_(dispatch|combine)|\b(cached_)?notify_|\b(dispatch|combine)_(send|recv)\b"
            # UCX and UCC, oneCCL.
            r"|\buc[cpt]_|\bccl(::|_)"
        ),
    ),
    (WorkClass.COPY, "", r"^(mem(cpy|set)|copybuffer|fillbuffer)"),
    (WorkClass.COPY, "reshape_and_cache store_kvcache concat_and_cache dma_request", None),
    (
        WorkClass.ATTENTION,
        "sage_fwd sage_attn sageattn flash fmha attention attn sdpa paged_kv bwd_kernel_d",
        None,
    ),
    (
        WorkClass.NORM,
        "batchnorm rowwisemoments gammabeta rmsnorm layernorm bn_fw bn_bw bn_update",
        r"(batch|layer|rms|group|instance)_?norm",
    ),
    (
        WorkClass.CONVOLUTION,
        (
            "convol conv1d conv2d conv3d wgrad dgrad scudnn winograd igemm_fwd igemm_bwd igemm_wrw "
            "implicit_gemm im2col col2im cudnn::cnn miopen gridwisegemm_bk0mk0"
        ),
        r"conv(?!ert)",
    ),
    (WorkClass.ELEMENTWISE, "rotary rope_ _rope", None),
    (WorkClass.EMBEDDING, "embedding pooled_embs", None),
    (
        WorkClass.GEMM,
        (
            "gemm gemv nvjet cutlass cijk_ xmma splitkreduce matmul scaled_mm grouped_mm aten::linear "
            "addmv cublas aten::einsum xxt_kernel _mm_kernel mma_kernel _rnn rnn_ persistrnn triton_tem"
        ),
        r"(^|::|_|^aclnn)(addmm|baddbmm|bmm|mm)(_|\b)|aten::(dot|mv|lstm|gru)\b|(^|_)dot[._](\d|general)",
    ),
    (WorkClass.SOFTMAX, "softmax cross_entropy crossentropy nll_loss nllloss", None),
    (
        WorkClass.OPTIMIZER,
        "multi_tensor_apply multitensorapply _foreach_ fused_adam fusedadam fused_sgd",
        r"fused_?(adagrad|lamb|optim)",
    ),
    (WorkClass.POOLING, "pool", None),
    (
        WorkClass.INDEXING,
        ("index gather scatter sort topk nonzero ::select masked unique cumsum scan histc routing moe_align"),
        None,
    ),
    (
        WorkClass.COPY,
        (
            "copy transpose catarray ::contiguous ::clone nchwtonhwc nhwctonchw transdata permute "
            "subtensorop ::stack ::fill_ ::zero _local_scalar_dense"
        ),
        r"aten::(to|cat|item)\b",
    ),
    (
        WorkClass.REDUCTION,
        "reduc triton_red triton_per vector_norm moe_sum",
        r"aten::(sum|mean|max|min|norm|argmax|prod|any|all)\b",
    ),
    (
        WorkClass.ELEMENTWISE,
        (
            "elementwise functor triton_poi triton_fused vectorized unrolled silu gelu relu sigmoid tanh "
            "dropout upsample threshold optensor scalepackedtensor swiglu act_and_mul quant rescale_qkv "
            "fusion wrapped_"
        ),
        (
            r"aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|clamp\w*|where|addc\w+|lerp|cos|sin|eq|ne|gt"
            r"|lt|ge|le|logical\w*|bitwise\w*)_?$"
            r"|^aclnn(inplace)?(add|sub|mul|div|pow|sqrt|exp|log|neg|abs|cast|addc|zero|fill)"
        ),
    ),
)
_RULES = tuple((kind, tuple(words.split()), pattern) for kind, words, pattern in _WORDS_AND_PATTERNS)
# Views move no data, whatever their names.
_VIEW_NAMES = (
    "transpose t permute view _unsafe_view reshape select slice narrow expand as_strided unsqueeze squeeze "
    "detach unbind split chunk alias movedim flatten expand_as view_as swapaxes unfold diagonal real imag "
    "split_with_sizes numpy_t"
)
_VIEWS = frozenset(f"aten::{name}" for name in _VIEW_NAMES.split())
# Draws numbers one by one. What dropout draws, on a processor, is called the same.
RANDOM = regex(
    r"^aten::(rand\w*|normal\w*|uniform_?|random_|bernoulli_?|exponential_|geometric_|cauchy_|log_normal_"
    r"|multinomial|poisson)$"
)
# Kernels that Inductor generates are named after the operations around them. Those with a pointwise or
# reducing loop hold no matrix product, attention or transfer, whatever stands in their name, and a cast or a
# permutation is part of their loop.
_GENERATED_LOOPS = ("triton_poi_", "triton_red_", "triton_per_")
_LOOPS = frozenset(
    {
        WorkClass.NORM,
        WorkClass.EMBEDDING,
        WorkClass.SOFTMAX,
        WorkClass.POOLING,
        WorkClass.REDUCTION,
        WorkClass.ELEMENTWISE,
    }
)
# The start of a name says what kind of kernel it is; the rest of a template's name can be kilobytes.
_LONGEST = 250


@lru_cache(maxsize=100_000)
def classify(name: str) -> WorkClass:
    """Return what kind of work the kernel or operation called `name` does."""
    if name in _VIEWS:
        return WorkClass.OTHER
    text = name[:_LONGEST].lower()
    is_loop = text.startswith(_GENERATED_LOOPS)
    for work_class, words, pattern in _RULES:
        if is_loop and work_class not in _LOOPS:
            continue
        for word in words:
            if word in text:
                return work_class
        if pattern is not None and re.search(pattern, text):
            return work_class
    return WorkClass.OTHER


# The first role that has a word of the name decides. Words are those of common model codes.
_ROLE_WORDS = {
    "qkv": (
        WorkClass.GEMM,
        "qkv q k v wq wk wv query key value q_proj k_proj v_proj qkv_proj c_attn in_proj to_q to_k to_v",
    ),
    "attention out": (WorkClass.GEMM, "o_proj out_proj wo attn_out to_out o dense_out"),
    "mlp up": (WorkClass.GEMM, "gate up gate_proj up_proj gate_up fc1 w1 w3 c_fc wi ffn1 dense_h_to_4h"),
    "mlp down": (WorkClass.GEMM, "down down_proj fc2 w2 mlp_out ffn2 dense_4h_to_h"),
    "head": (WorkClass.GEMM, "lm_head head logits lmhead unembed output_layer"),
    "embedding": (WorkClass.EMBEDDING, "embed embedding wte wpe embed_tokens emb tok_embeddings"),
    "rope": (None, "rope rotary"),
    "lora": (WorkClass.GEMM, "lora lora_a lora_b adapter"),
    "experts": (WorkClass.GEMM, "expert experts moe router"),
    "loss": (WorkClass.SOFTMAX, "loss ce nll cross_entropy crossentropy"),
    "norm": (WorkClass.NORM, "norm rmsnorm layernorm ln ln1 ln2 rms_norm layer_norm input_layernorm"),
    "attention": (None, "attention attn sdpa softmax flash self_attn"),
    "mlp": (WorkClass.GEMM, "mlp ffn feedforward feed_forward silu gelu swiglu"),
}
_ROLES = {role: frozenset(words.split()) for role, (_, words) in _ROLE_WORDS.items()}
_UPDATES = frozenset({"adam", "adamw", "optim", "optimizer", "sgd", "muon"})
_BACKWARD = frozenset(["bwd", "backward", "grad", "dgrad", "wgrad", "bw"])
_FORWARD = frozenset(["fwd", "forward", "fw"])
_WORD = regex(r"[a-z0-9]+")
_CAMEL = regex(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LONGEST_ROLE = 200


@lru_cache(maxsize=10_000)
def role_of(name: str) -> str | None:
    """Return the part of a model that an operation or module is; None if unknown."""
    words = _words(name)
    return next((role for role, known in _ROLES.items() if words & known), None)


@lru_cache(maxsize=10_000)
def class_of(name: str) -> WorkClass:
    """Return the work class of an operation, also where its name is a part of a model (`mlp_down`)."""
    words = _words(name) if "::" not in name else frozenset()
    role = role_of(name) if words else None
    if role == "norm":
        return WorkClass.NORM
    if words & _UPDATES:
        return WorkClass.OPTIMIZER
    if words:  # plain words are enough for names that people chose
        text = name[:_LONGEST].lower()
        found = next((kind for kind, known, _ in _RULES if any(word in text for word in known)), None)
        if role in ("qkv", "attention out") and found is WorkClass.ATTENTION:  # c_attn is a product
            return WorkClass.GEMM
        if found is None and role is not None:
            found = _ROLE_WORDS[role][0]
        if found is not None:
            return found
    return classify(name)


@lru_cache(maxsize=10_000)
def direction_of(name: str) -> str | None:
    """Return forward or backward; None if unknown."""
    words = _words(name)
    if words & _BACKWARD or "Backward" in name[:_LONGEST_ROLE]:
        return "backward"
    return "forward" if words & _FORWARD else None


def _words(name: str) -> frozenset[str]:
    """Return the words of a name, alone and joined with their neighbour."""
    text = name[:_LONGEST_ROLE]
    if not text.islower():
        text = _CAMEL.sub("_", text)
    words = _WORD.findall(text.casefold())
    stems = [word for word in words if not word.isdecimal()]
    pairs = [f"{word}_{following}" for word, following in pairwise(stems)]
    return frozenset((*stems, *pairs))
