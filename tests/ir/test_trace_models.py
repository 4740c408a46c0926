"""Models by text: shapes without weights for planning, seeded weights for training."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from shardwise.ir.errors import FileFormatError, InvalidValueError
from shardwise.ir.trace_models import load_model

ROOT = Path(__file__).parents[2]
TINY = "hf:" + str(ROOT / "configs/models/tiny-llama.json")
FULL = "hf:" + str(ROOT / "configs/models/llama-3-8b.json")


def test_the_full_size_model_needs_no_memory():
    model = load_model(FULL, dtype="bfloat16")
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
    assert model.training and model.config.use_cache is False
    assert model.config._attn_implementation == "sdpa"


def test_random_weights_follow_the_seed():
    one, two = (load_model(TINY, weights="random", seed=3) for _ in range(2))
    other = load_model(TINY, weights="random", seed=4)
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert one.config.vocab_size == 256 and one.config.max_position_embeddings == 8192
    assert not load_model(TINY, train=False).training


def test_functions():
    model = load_model("tests.models.hand_written:MLP")
    assert all(parameter.is_meta for parameter in model.parameters())
    model = load_model("tests.models.hand_written:MLP", weights="random")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_config_without_architectures_is_a_causal_language_model(tmp_path):
    config = json.loads(Path(TINY.removeprefix("hf:")).read_text())
    del config["architectures"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert type(load_model(f"hf:{path}")).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("llama", InvalidValueError, "give hf:PATH"),
        ("hf:", InvalidValueError, "give hf:PATH"),
        ("no.such.module:build", InvalidValueError, "No module named"),
        ("tests.models.hand_written:nothing", InvalidValueError, "nothing"),
        ("json:dumps", InvalidValueError, "raised TypeError"),
        ("builtins:dict", InvalidValueError, "returned dict"),
        ("hf:no/such.json", FileFormatError, "No such file"),
    ],
)
def test_bad_specs(spec, error, message):
    with pytest.raises(error, match=r".*") as caught:
        load_model(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "no model_type"),
        ('{"model_type": "no-such-model"}', "cannot build it"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "cannot build it"),
    ],
)
def test_bad_files_name_the_file(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        load_model(f"hf:{path}")
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_options():
    for options in ({"weights": "pretrained"}, {"dtype": "float31"}):
        with pytest.raises(InvalidValueError):
            load_model(TINY, **options)
    assert isinstance(load_model(TINY), nn.Module)
