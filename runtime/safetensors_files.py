"""Weights in and out as Hugging Face safetensors: `init = "hf:DIR"`, `shardwise export`."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise.ir.errors import FileFormatError, InvalidValueError, MismatchError, UnsupportedError


def load_weights(model: nn.Module, source: str) -> None:
    """Fill a model from `hf:DIR` (model.safetensors, or shards with an index).

    Raises FileFormatError where there are no such files and MismatchError where names or shapes are
    not those of the model; the model is left as it was then.
    """
    kind, _, folder = source.partition(":")
    if kind != "hf" or not folder:
        raise InvalidValueError(f"init {source!r}: use random or hf:DIR")
    tensors = _read(Path(folder))
    expected = dict(model.named_parameters(remove_duplicate=False))
    groups: dict[int, list[str]] = {}
    for name, parameter in expected.items():
        groups.setdefault(id(parameter), []).append(name)
    for names in groups.values():
        found = [name for name in names if name in tensors]
        if not found:
            raise MismatchError(
                f"{folder}: no weights for {names[0]}; give the weights of this model"
            )
        shape = tuple(tensors[found[0]].shape)
        if shape != tuple(expected[names[0]].shape):
            raise MismatchError(
                f"{folder}: {found[0]} has shape {shape} and the model has "
                f"{tuple(expected[names[0]].shape)}; give the weights of this model"
            )
    with torch.no_grad():
        for names in groups.values():
            name = next(name for name in names if name in tensors)
            expected[names[0]].copy_(tensors[name])


def _read(folder: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UnsupportedError("hf: weights need safetensors; install shardwise[hf]") from error
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    result: dict[str, torch.Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise FileFormatError(
                f"{folder}: there is no {name}; give a folder with model.safetensors or its shards"
            )
        result |= load_file(folder / name)
    return result


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Write model.safetensors and config.json, so that `from_pretrained(folder)` loads them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
