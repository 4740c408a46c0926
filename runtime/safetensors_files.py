"""Weights in and out as Hugging Face safetensors: `init = "hf:DIR"` and `shardwise export`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise.ir.errors import FileFormatError, InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.graph_items import Section

_FILE = "model.safetensors"


def load_weights(model: nn.Module, source: str) -> None:
    """Fill a model from `hf:DIR` (model.safetensors, or shards with an index).

    Tied weights may come under any of their names. Raises FileFormatError where there are no such
    files and MismatchError where names or shapes are not those of the model, which is left as it
    was then.
    """
    kind, _, folder = source.partition(":")
    if kind != "hf" or not folder:
        raise InvalidValueError(f"init {source!r}: use random or hf:DIR")
    fill(model, _read(Path(folder)), folder)


def fill(model: nn.Module, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Copy tensors into the parameters of a model by name, and into its persistent buffers where
    they are there; MismatchError, naming `source`, where they are not those of the model."""
    expected = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: value for name, value in model.state_dict().items() if name not in expected}
    groups: dict[int, list[str]] = {}
    for name, parameter in expected.items():
        groups.setdefault(id(parameter), []).append(name)
    chosen: dict[str, torch.Tensor] = {}
    for names in groups.values():
        found = next((name for name in names if name in tensors), None)
        if found is None:
            raise MismatchError(f"{source}: no weights for {names[0]}; give those of this model")
        chosen[found] = expected[found]
    unknown = sorted(set(tensors) - set(expected) - set(buffers))
    if unknown:
        raise MismatchError(
            f"{source}: the model has no {unknown[0]} ({len(unknown)} such weights); give the "
            "weights of this model"
        )
    chosen |= {name: value for name, value in buffers.items() if name in tensors}
    for name, target in chosen.items():
        shape = tuple(tensors[name].shape)
        if shape != tuple(target.shape):
            raise MismatchError(
                f"{source}: {name} has shape {shape} and the model has {tuple(target.shape)}; give "
                "the weights of this model"
            )
    with torch.no_grad():
        for name, target in chosen.items():
            target.copy_(tensors[name])


def _read(folder: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise UnsupportedError("hf: weights need safetensors; install shardwise[hf]") from error
    index = folder / f"{_FILE}.index.json"
    names = [_FILE]
    try:
        if index.is_file():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        result: dict[str, torch.Tensor] = {}
        for name in names:
            if not (folder / name).is_file():
                raise FileFormatError(
                    f"{folder}: there is no {name}; give a folder with {_FILE} or its shards"
                )
            result |= load_file(folder / name)
    except (SafetensorError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{folder}: damaged weights ({error}); copy them again") from error
    return result


def merge_sections(
    tensors: Mapping[str, torch.Tensor], sections: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Masters under the names of the model: sections of fused weights are put together.

    `sections` maps names of sections to their text, `c_attn.weight[1, 0:64]`.
    """
    result = {name: tensor for name, tensor in tensors.items() if name not in sections}
    fused: dict[str, list[tuple[Section, torch.Tensor]]] = {}
    for name, text in sections.items():
        section = Section.parse(text)
        fused.setdefault(section.source, []).append((section, tensors[name]))
    for source, parts in fused.items():
        parts.sort(key=lambda part: part[0].start)
        result[source] = torch.cat([tensor for _, tensor in parts], dim=parts[0][0].dim)
    return result


def write_model(model: nn.Module, folder: Path) -> None:
    """Write a model's weights, tied ones once, as model.safetensors.

    A transformers model writes itself, config.json included, so that `from_pretrained(folder)`
    loads it; a module of the user's own has no config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained: Any = getattr(model, "save_pretrained", None)
    if save_pretrained is not None:
        save_pretrained(folder)
        return
    try:
        from safetensors.torch import save_model
    except ImportError as error:
        raise UnsupportedError("export needs safetensors; install shardwise[hf]") from error
    save_model(model, str(folder / _FILE), metadata={"format": "pt"})
