"""Weights in and out: names, shapes, ties, fused weights, and transformers as the reader."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from shardwise.ir.errors import FileFormatError, InvalidValueError, MismatchError
from shardwise.runtime.safetensors_files import fill, load_weights, merge_sections, write_model
from tests.support.tiny_decoder import build


def weights():
    return {name: torch.randn_like(p) for name, p in build().named_parameters()}


def test_round_trip_of_a_module_keeps_ties(tmp_path):
    model, other = build(), build()
    write_model(model, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert len({"table.weight", "head.weight"} & saved.keys()) == 1
    load_weights(other, f"hf:{tmp_path}")
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert other.head.weight is other.table.weight


def test_ties_may_come_under_any_name_and_shards_by_their_index(tmp_path):
    tensors = weights()
    tensors["head.weight"] = tensors.pop("table.weight")
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:3]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[3:]}, tmp_path / "b.safetensors")
    files = {name: f"{'a' if index < 3 else 'b'}.safetensors" for index, name in enumerate(names)}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    model = build()
    load_weights(model, f"hf:{tmp_path}")
    assert torch.equal(model.table.weight, tensors["head.weight"])
    assert torch.equal(model.layers[1].up.weight, tensors["layers.1.up.weight"])
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"there is no b\.safetensors"):
        load_weights(model, f"hf:{tmp_path}")
    index.write_text("{}")
    with pytest.raises(FileFormatError, match="damaged weights"):
        load_weights(model, f"hf:{tmp_path}")


def test_what_does_not_fit_leaves_the_model(tmp_path):
    model = build()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    name = "layers.0.q.weight"
    full = weights()
    for tensors, says in (
        ({n: t for n, t in full.items() if n != name}, f"no weights for {name}"),
        (full | {name: torch.zeros(2, 2)}, rf"{name} has shape \(2, 2\)"),
        (full | {"layers.9.q.weight": torch.zeros(2)}, r"the model has no layers\.9\.q\.weight"),
    ):
        with pytest.raises(MismatchError, match=says):
            fill(model, tensors, "here")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_persistent_buffers_are_filled():
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    model.running_mean.fill_(2.5)
    fill(other, model.state_dict(), "here")
    assert torch.equal(other.running_mean, model.running_mean)


@pytest.mark.parametrize("source", ["zeros", "hf:", "npz:here"])
def test_sources(source):
    with pytest.raises(InvalidValueError, match="use random or hf:DIR"):
        load_weights(build(), source)


def test_files_that_are_not_there_or_damaged(tmp_path):
    with pytest.raises(FileFormatError, match=r"no model\.safetensors"):
        load_weights(build(), f"hf:{tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"nothing at all")
    with pytest.raises(FileFormatError, match="damaged weights"):
        load_weights(build(), f"hf:{tmp_path}")


def test_sections_are_put_together():
    fused = torch.arange(24.0).view(2, 12)
    tensors = {
        "a": torch.zeros(1), "w#v": fused[:, 8:], "w#q": fused[:, :4], "w#k": fused[:, 4:8],
        "b#0": torch.tensor([1.0]), "b#1": torch.tensor([2.0, 3.0]),
    }  # fmt: skip
    sections = {
        "w#v": "w[1, 8:12]", "w#q": "w[1, 0:4]", "w#k": "w[1, 4:8]", "b#0": "b[0, 0:1]",
        "b#1": "b[0, 1:3]",
    }  # fmt: skip
    merged = merge_sections(tensors, sections)
    assert merged.keys() == {"a", "w", "b"}
    assert torch.equal(merged["w"], fused) and merged["b"].tolist() == [1.0, 2.0, 3.0]
