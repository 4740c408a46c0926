"""A model seen without its weights: for a while, its parameters and buffers are fake, on cpu."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def without_weights(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, every parameter and buffer of `model` is fake, on cpu, ties kept.

    Real, meta and fake tensors are taken alike, and tensors that are plain attributes come to cpu;
    floating-point parameters have the compute dtype `dtype` if it is given. Afterwards the model
    has its own tensors again, whatever happened.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, torch.Tensor] = {}
    undo: list[tuple[dict[str, Any], str, Any]] = []

    def fake(tensor: torch.Tensor) -> Any:
        if id(tensor) not in fakes:
            parameter = isinstance(tensor, nn.Parameter)
            cast = dtype is not None and parameter and tensor.is_floating_point()
            with mode, torch.no_grad():
                made = torch.empty_strided(
                    tuple(tensor.shape), tuple(tensor.stride()), device="cpu",
                    dtype=dtype if cast else tensor.dtype,
                )  # fmt: skip
            if parameter:
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            fakes[id(tensor)] = made
        return fakes[id(tensor)]

    try:
        for module in model.modules():
            for store in (module._parameters, module._buffers, module.__dict__):
                for key, value in list(store.items()):
                    if not isinstance(value, torch.Tensor):
                        continue
                    plain = store is module.__dict__ and not value.is_meta
                    if plain and value.device.type == "cpu":
                        continue
                    undo.append((store, key, value))
                    taken: Any = value.cpu() if plain else fake(value)
                    store[key] = taken
        yield
    finally:
        for store, key, value in undo:
            store[key] = value


@contextlib.contextmanager
def library_settings(model: nn.Module) -> Iterator[None]:
    """Settings of Hugging Face models that hold for a trace, restored afterwards.

    No cache of keys and values, and grouped keys and values stay grouped: repeating them first
    would make all-to-all carry the repeats (docs/design/tracing.md).
    """
    variable = "TRANSFORMERS_SDPA_FORCE_GQA"
    before = os.environ.get(variable)
    cached = []
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            cached.append(config)
            config.use_cache = False  # type: ignore[union-attr]
    os.environ[variable] = "1"
    try:
        yield
    finally:
        for config in cached:
            config.use_cache = True  # type: ignore[union-attr]
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before
