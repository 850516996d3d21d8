"""Parameter counts of public models are exact; what a config does not say right is refused by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.errors import BadInput, BadJson, StepgradeError, TooLarge, UnknownArchitecture
from stepgrade.hardware.models.decoders import ARCHITECTURES
from stepgrade.hardware.models.hf_config import MOST_CONFIG_BYTES, model_from_config, read_model
from stepgrade.hardware.models.shape import ModelShape
from tests.hardware import model_configs as configs


def shape_of(config: dict[str, Any], **changes: Any) -> ModelShape:
    return model_from_config(json.dumps({**config, **changes}))


@pytest.mark.parametrize("name", configs.PARAMETERS)
def test_parameter_counts_are_exact(name: Any) -> None:
    config, parameters = configs.PARAMETERS[name]
    assert shape_of(config).parameters == parameters


def test_every_architecture_has_an_exact_count() -> None:
    counted = {config["model_type"] for config, _ in configs.PARAMETERS.values()}
    # granite is Llama with scales that are no parameters; gemma3 wraps gemma3_text.
    assert set(ARCHITECTURES) - counted == {"granite", "gemma3"}


def test_active_parameters_of_mixtral() -> None:
    shape = shape_of(configs.MIXTRAL_8X7B)
    assert shape.active_parameters == 12_879_925_248
    assert shape.matmul_weights == 12_879_925_248 - 32000 * 4096 - 65 * 4096


def test_a_dense_model_is_all_active() -> None:
    shape = shape_of(configs.LLAMA3_8B)
    assert shape.active_parameters == shape.parameters
    assert shape.matmul_weights == shape.parameters - 128256 * 4096 - 65 * 4096


@pytest.mark.parametrize(
    ("config", "spans"),
    [
        (configs.MISTRAL_7B, {(32, 4096)}),
        ({**configs.MISTRAL_7B, "sliding_window": None}, {(32, None)}),
        (configs.QWEN25_15B, {(28, None)}),
        (
            {**configs.QWEN25_15B, "use_sliding_window": True, "max_window_layers": 21},
            {(21, None), (7, 32768)},
        ),
        (configs.GEMMA2_9B, {(21, None), (21, 4096)}),
        (configs.GEMMA3_1B, {(4, None), (22, 512)}),
        (configs.GPT_OSS_20B, {(12, None), (12, 128)}),
        (configs.PHI3_MINI, {(32, 2047)}),
    ],
)
def test_windows(config: Any, spans: Any) -> None:
    assert {(layer.count, layer.window) for layer in shape_of(config).layers} == spans


def test_gemma3_with_vision_counts_its_text_part_and_says_so() -> None:
    wrapped = {"model_type": "gemma3", "text_config": configs.GEMMA3_1B, "vision_config": {}}
    shape = shape_of(wrapped)
    assert shape.parameters == shape_of(configs.GEMMA3_1B).parameters
    assert "vision" in shape.notes[0]


def test_the_layers_that_predict_further_tokens_are_named() -> None:
    assert "further tokens" in shape_of(configs.DEEPSEEK_V3).notes[0]


def test_lora_on_all_linear_layers_of_qwen() -> None:
    assert shape_of(configs.QWEN25_15B).adapters(16, "all") == 18_464_768
    assert shape_of(configs.QWEN25_15B).adapters(16, "attention") < 18_464_768


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"hidden_size": None}, "hidden_size", "is null"),
        ({"hidden_size": "4096"}, "hidden_size", "must be a whole number, not '4096'"),
        ({"hidden_size": -4096}, "hidden_size", "must be between"),
        ({"hidden_size": 10**12}, "hidden_size", "must be between"),
        ({"hidden_size": 4096.5}, "hidden_size", "must be a whole number"),
        ({"hidden_size": True}, "hidden_size", "must be a whole number"),
        ({"hidden_size": [4096]}, "hidden_size", "not a list"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "must be between"),
        ({"num_attention_heads": 40}, "num_attention_heads", "does not divide"),
        ({"num_key_value_heads": 64}, "num_key_value_heads", "must be between"),
        ({"num_key_value_heads": 7}, "num_key_value_heads", "does not divide"),
        ({"vocab_size": {}}, "vocab_size", "not a dict"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "must be true or false"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"model_type": 7}, "model_type", "must be a text"),
    ],
)
def test_a_bad_field_is_named(changes: Any, field: Any, problem: Any) -> None:
    with pytest.raises(BadInput) as error:
        shape_of(configs.LLAMA3_8B, **changes)
    assert error.value.where == field
    assert problem in error.value.problem
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("length", "shown"), [(60, "x" * 60), (61, "x" * 57 + "...")])
def test_an_unknown_architecture_is_named_in_sixty_characters(length: int, shown: str) -> None:
    with pytest.raises(BadInput) as error:
        shape_of(configs.LLAMA3_8B, model_type="x" * length)
    assert f"the architecture {shown!r} is not modelled" in error.value.problem


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(field: Any) -> None:
    config = {name: value for name, value in configs.LLAMA3_8B.items() if name != field}
    with pytest.raises(BadInput, match="is missing") as error:
        shape_of(config)
    assert error.value.where == field


def test_more_experts_per_token_than_experts() -> None:
    with pytest.raises(BadInput) as error:
        shape_of(configs.MIXTRAL_8X7B, num_experts_per_tok=9)
    assert error.value.where == "num_experts_per_tok"


@pytest.mark.parametrize("kind", ["bert", "mamba", "llama4", "x" * 500, "\x1b[31m"])
def test_an_unknown_architecture_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(UnknownArchitecture, match="is not modelled") as error:
        shape_of(configs.LLAMA3_8B, model_type=kind)
    assert "llama" in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("layer_types", [["full_attention"], ["linear_attention"] * 42, [[]] * 42])
def test_layers_of_an_unknown_kind_are_refused(layer_types: Any) -> None:
    with pytest.raises(BadInput) as error:
        shape_of(configs.GEMMA2_9B, layer_types=layer_types)
    assert error.value.where == "layer_types"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "NaN", "[" * 100_000, "\udcff".encode("utf-8", "surrogateescape")]
)
def test_what_is_no_config_is_refused(text: Any) -> None:
    with pytest.raises(BadJson):
        model_from_config(text)


def test_a_huge_file_is_refused_without_reading_it_whole(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(TooLarge, match="not a model's"):
        read_model(str(path))
    assert MOST_CONFIG_BYTES < 100 * 2**20


def test_a_folder_stands_for_the_config_inside(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs.GPT2))
    assert read_model(str(tmp_path)).parameters == 124_439_808


def test_a_file_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_model(str(tmp_path / "none.json"))


def test_an_error_names_file_and_field(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**configs.GPT2, "n_embd": "wide"}))
    with pytest.raises(BadInput) as error:
        read_model(str(path))
    assert error.value.where == f"{path}: n_embd"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(configs.PARAMETERS)), st.data())
def test_any_value_in_any_field_gives_a_shape_or_our_error(name: Any, data: Any) -> None:
    config = dict(configs.PARAMETERS[name][0])
    field = data.draw(st.sampled_from(sorted(config)))
    config[field] = data.draw(JSON)
    try:
        shape = model_from_config(json.dumps(config, allow_nan=False))
    except StepgradeError:
        return
    assert shape.parameters >= shape.active_parameters >= shape.matmul_weights - shape.head > 0


@given(st.binary(max_size=200))
def test_any_bytes_give_our_error(raw: Any) -> None:
    with pytest.raises(StepgradeError):
        model_from_config(raw)


def test_experts_are_in_every_second_layer_that_is_not_listed() -> None:
    """Of layers 0 to 5 every second has experts (1, 3 and 5), and 3 is listed as plain."""
    config = {**configs.QWEN3_30B, "num_hidden_layers": 6, "decoder_sparse_step": 2}
    layers = shape_of(config, mlp_only_layers=[3, 4]).layers
    assert [(layer.count, layer.expert_count > 0) for layer in layers] == [(4, False), (2, True)]
