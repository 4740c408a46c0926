"""Sizes from config.json against the library that the config is for."""

import json
from pathlib import Path

import pytest

from shardwise.ir.errors import FileFormatError, InvalidValueError, UnsupportedError
from shardwise.planner.decoder_config import decoder_of_config

LLAMA = json.loads(Path("configs/models/tiny-llama.json").read_text("utf-8"))
GPT2 = {
    "model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 300,
    "n_positions": 128, "resid_pdrop": 0.1, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip


def written(tmp_path, values):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "values",
    [
        LLAMA,
        {**LLAMA, "tie_word_embeddings": True},
        {**LLAMA, "attention_bias": True, "mlp_bias": True},
        {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        GPT2,
        {**GPT2, "n_inner": 200, "tie_word_embeddings": False},
    ],
    ids=["llama", "tied", "biases", "mistral", "gpt2", "gpt2 untied"],
)
def test_parameters_are_those_of_the_library(values, tmp_path):
    pytest.importorskip("transformers")
    from shardwise.ir.trace_models import load_model

    path = written(tmp_path, values)
    model = load_model(f"hf:{path}")
    names = {id(parameter): parameter.numel() for parameter in model.parameters()}
    shape = decoder_of_config(path)
    assert shape.parameters == pytest.approx(sum(names.values()), rel=1e-9)


def test_sizes_of_the_known_models():
    shape = decoder_of_config("configs/models/llama-3-8b.json")
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (32, 4096, 32, 8)
    assert (shape.ffn, shape.vocabulary, shape.parameters) == (14336, 128256, 8_030_261_248)
    assert shape.gated and shape.rotary and shape.rms_norm and not shape.bias and not shape.tied


def test_gpt2_names(tmp_path):
    shape = decoder_of_config(written(tmp_path, GPT2))
    assert (shape.layers, shape.hidden, shape.heads, shape.ffn) == (3, 64, 4, 256)
    assert shape.positions == 128 and shape.tied and shape.dropout and not shape.gated
    assert not decoder_of_config(written(tmp_path, {**GPT2, "resid_pdrop": 0.0})).dropout


@pytest.mark.parametrize(
    ("change", "kind", "names"),
    [
        ({"model_type": "mixtral"}, UnsupportedError, "mixtral"),
        ({"model_type": None}, UnsupportedError, "model_type"),
        ({"model_type": ["llama"]}, UnsupportedError, "model_type"),
        ({"head_dim": 32}, UnsupportedError, "heads of 32"),
        ({"hidden_act": "gelu"}, UnsupportedError, "gelu"),
        ({"num_hidden_layers": None}, FileFormatError, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 0}, FileFormatError, "num_hidden_layers is 0"),
        ({"hidden_size": "64"}, FileFormatError, "hidden_size is '64'"),
        ({"hidden_size": True}, FileFormatError, "hidden_size"),
        ({"intermediate_size": None}, FileFormatError, "intermediate_size is missing"),
        ({"num_attention_heads": 5}, InvalidValueError, "5 heads"),
    ],
)
def test_what_is_not_priced(change, kind, names, tmp_path):
    with pytest.raises(kind, match=names) as error:
        decoder_of_config(written(tmp_path, {**LLAMA, **change}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_config(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as error:
        decoder_of_config(path)
    assert "config.json" in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileFormatError, match="No such file"):
        decoder_of_config(tmp_path / "none.json")
