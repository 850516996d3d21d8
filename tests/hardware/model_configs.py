"""Configs of public models as their config.json gives them, for the tests of this room."""

from __future__ import annotations

from typing import Any

QWEN25_15B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 28,
}
QWEN25_05B = {**QWEN25_15B, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
QWEN25_05B["intermediate_size"] = 4864
QWEN25_3B = {**QWEN25_15B, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16}
QWEN25_3B["intermediate_size"] = 11008
QWEN25_7B = {
    **QWEN25_15B,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN25_14B = {
    **QWEN25_7B,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 13824,
}
QWEN25_32B = {**QWEN25_14B, "num_hidden_layers": 64, "intermediate_size": 27648}
LLAMA3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
LLAMA3_70B = {
    **LLAMA3_8B,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
LLAMA3_405B = {
    **LLAMA3_8B,
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "intermediate_size": 53248,
}
MIXTRAL_8X7B: dict[str, Any] = {
    **LLAMA3_8B,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA2_7B = {**LLAMA3_8B, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}
LLAMA2_13B = {
    **LLAMA2_7B,
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "intermediate_size": 13824,
}
LLAMA2_70B = {**LLAMA3_70B, "vocab_size": 32000}
TINYLLAMA = {
    **LLAMA2_7B,
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
}
QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
QWEN3_235B = {
    **QWEN3_30B,
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
}
QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
QWEN15_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
}
MISTRAL_7B = {**LLAMA3_8B, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
GPT_NEOX_20B: dict[str, Any] = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
}
GEMMA_2B: dict[str, Any] = {
    "model_type": "gemma",
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 16384,
    "vocab_size": 256000,
}
GEMMA2_9B = {
    **GEMMA_2B,
    "model_type": "gemma2",
    "hidden_size": 3584,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "sliding_window": 4096,
}
GEMMA3_1B = {
    **GEMMA_2B,
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "intermediate_size": 6912,
    "vocab_size": 262144,
    "sliding_window": 512,
}
PHI_2: dict[str, Any] = {
    "model_type": "phi",
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 10240,
    "vocab_size": 51200,
}
PHI3_MINI: dict[str, Any] = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 32064,
    "sliding_window": 2047,
}
OLMO2_7B = {**LLAMA3_8B, "model_type": "olmo2", "num_key_value_heads": 32, "intermediate_size": 11008}
OLMO2_7B["vocab_size"] = 100352
OLMOE_1B_7B: dict[str, Any] = {
    "model_type": "olmoe",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
}
STARCODER2_3B: dict[str, Any] = {
    "model_type": "starcoder2",
    "hidden_size": 3072,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "intermediate_size": 12288,
    "vocab_size": 49152,
    "sliding_window": 4096,
}
GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "sliding_window": 128,
}
GPT_OSS_120B = {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128}
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
DEEPSEEK_V3 = {
    **DEEPSEEK_V2_LITE,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
}
KIMI_K2 = {
    **DEEPSEEK_V3,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
}
MPT_7B: dict[str, Any] = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "vocab_size": 50432,
    "max_seq_len": 2048,
    "no_bias": True,
    "attn_config": {"alibi": True},
}

# Counted with transformers 5.22 by building each model on PyTorch's meta device; the first seven are
# also the published counts.
PARAMETERS: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen2.5-Coder-1.5B": (QWEN25_15B, 1_543_714_304),
    "Llama-3-8B": (LLAMA3_8B, 8_030_261_248),
    "Llama-3-70B": (LLAMA3_70B, 70_553_706_496),
    "Llama-3.1-405B": (LLAMA3_405B, 405_853_388_800),
    "Mixtral-8x7B": (MIXTRAL_8X7B, 46_702_792_704),
    "GPT-2": (GPT2, 124_439_808),
    "Qwen3-30B-A3B": (QWEN3_30B, 30_532_122_624),
    "Qwen3-8B": (QWEN3_8B, 8_190_735_360),
    "Qwen1.5-MoE-A2.7B": (QWEN15_MOE, 14_315_784_192),
    "Mistral-7B": (MISTRAL_7B, 7_241_732_096),
    "GPT-NeoX-20B": (GPT_NEOX_20B, 20_554_567_680),
    "Gemma-2B": (GEMMA_2B, 2_506_172_416),
    "Gemma-2-9B": (GEMMA2_9B, 9_241_705_984),
    "Gemma-3-1B": (GEMMA3_1B, 999_885_952),
    "Phi-2": (PHI_2, 2_779_683_840),
    "Phi-3-mini": (PHI3_MINI, 3_821_079_552),
    "OLMo-2-7B": (OLMO2_7B, 7_298_617_344),
    "OLMoE-1B-7B": (OLMOE_1B_7B, 6_919_161_856),
    "StarCoder2-3B": (STARCODER2_3B, 3_030_371_328),
    "GPT-OSS-20B": (GPT_OSS_20B, 20_914_757_184),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_404_352),
    "MPT-7B": (MPT_7B, 6_649_286_656),
}
