"""Runs a traced graph and its module on the same data, and compares them."""

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.trace import trace
from shardwise.ir.traced_model import TracedModel
from shardwise.runtime.interpreter import interpret, module_values
from tests.models import hand_written, hugging_face

TEXT = {"input_ids": ("B", "S"), "labels": ("B", "S")}
DIMS = {"B": (1, 64), "S": (1, 128)}


MODELS = {
    "llama": hugging_face.llama,
    "gpt2": hugging_face.gpt2,
    "bert": hugging_face.bert,
    "mistral": hugging_face.mistral,
    "hand-written": lambda dtype=torch.float64: hand_written.GPT().to(dtype),
}
"""Language models by name, each a function of a dtype."""


@functools.cache
def traced_model(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, TracedModel]:
    """A model and its trace, made once for all tests; neither is to be changed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = MODELS[name](dtype)
    return model, trace(model, TEXT, dims=DIMS, name=name)


@functools.cache
def traced_encoder_decoder() -> tuple[nn.Module, TracedModel]:
    """T5, of two lengths, float64; not to be changed."""
    torch.set_num_threads(1)
    model = hugging_face.t5()
    inputs = {"input_ids": ("B", "S_src"), "labels": ("B", "S_tgt")}
    dims = {"B": (1, 64), "S_src": (1, 64), "S_tgt": (1, 64)}
    return model, trace(model, inputs, dims=dims)


def text_batch(rows: int, length: int, *, vocabulary: int = 64) -> dict[str, torch.Tensor]:
    """Random tokens; a third of the labels is ignored."""
    generator = torch.Generator().manual_seed(1000 * rows + length)
    ids = torch.randint(2, vocabulary, (rows, length), generator=generator)
    labels = torch.randint(2, vocabulary, (rows, length), generator=generator)
    labels[:, : length // 3] = -100
    return {"input_ids": ids, "labels": labels}


def values_of(
    model: nn.Module, traced: TracedModel, batch: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {**module_values(model, traced.graph, traced.constants), **batch}


def differences(
    model: nn.Module, traced: TracedModel, batch: Mapping[str, torch.Tensor]
) -> tuple[float, float]:
    """Between module and graph: of the loss, and the largest of any gradient, absolute."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    outputs = model(**batch)
    wanted = outputs if isinstance(outputs, torch.Tensor) else outputs.loss
    total, weight = interpret(traced.graph, values_of(model, traced, batch))
    found = total / weight
    theirs = torch.autograd.grad(wanted, parameters, allow_unused=True)
    ours = torch.autograd.grad(found, parameters, allow_unused=True)
    assert [g is None for g in ours] == [g is None for g in theirs]
    worst = max(
        (float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True) if a is not None),
        default=0.0,
    )
    return abs(found.item() - wanted.item()), worst


def saved_by_operator(
    graph: OperatorGraph, values: Mapping[str, torch.Tensor], staying: set[int]
) -> dict[str, int]:
    """Bytes of new storages that each operator saves for the backward, as autograd reports them.

    `staying` are addresses of storages that do not count.
    """
    counted: dict[str, int] = {}
    seen: set[int] = set(staying)
    alive = []

    def around(operator: Operator) -> AbstractContextManager[object]:
        counted[operator.name] = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            alive.append(storage)
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                counted[operator.name] += storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    interpret(graph, values, around=around)
    return counted
