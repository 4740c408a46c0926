"""Trace a PyTorch module into an OperatorGraph: the entrance of the compiler.

    traced = trace(model, {"input_ids": ("B", "S"), "labels": ("B", "S")},
                   dims={"B": (1, 64), "S": (1, 8192)})
    traced.graph        operators with their meaning on whole tensors, sizes in B and S
    traced.units        embed, model.layers.0, ..., head
    traced.fingerprint  what a plan remembers of the model

`torch.export` (non-strict) runs the model once on fake tensors: no weights are needed, and the
model may be on the meta device. The result is converted at once (ir/trace_convert.py) and
normalised (ir/normalise.py).
"""

from collections.abc import Mapping

import torch
from torch import nn

from shardwise.ir.dtype import check_dtype
from shardwise.ir.fingerprint import ModelFingerprint
from shardwise.ir.normalise import normalise
from shardwise.ir.trace_export import LossFunction, export
from shardwise.ir.trace_inputs import InputLike, trace_inputs
from shardwise.ir.traced_model import TracedModel as TracedModel
from shardwise.ir.units import find_templates, find_units


def trace(
    model: nn.Module,
    inputs: Mapping[str, InputLike],
    *,
    dims: Mapping[str, tuple[int, int]],
    loss: LossFunction | None = None,
    dtype: str | None = None,
    name: str | None = None,
    max_sizes: Mapping[str, int] | None = None,
    contract: bool = True,
) -> TracedModel:
    """Trace `model` on `inputs`, whose named sizes range over `dims`, ends included.

    `inputs` maps names of arguments of the model's forward to shapes: ("B", "S") for int64, a text
    such as "float32[B, S, 64]", a TensorSpec, or a tensor, whose sizes are then fixed. An int in a
    shape is a fixed size: what only traces at one length is traced once per bucket. The batch size
    is called B, lengths S or S_something. `loss` takes (outputs, inputs by name) and returns a mean
    loss or (loss_sum, weight); without it the model's own loss is taken: `outputs.loss`, a first
    scalar, or the only tensor. `dtype` is the compute dtype of the parameters (default: theirs).
    `max_sizes` narrows the sizes for which masks are classified. The model is left as it was.

    Raises UntraceableModelError (module and source line), UnsupportedError (a loss or an in-place
    write that has no sharded form), InvalidValueError (the arguments).
    """
    given = trace_inputs(inputs, dims)
    called = name or type(model).__name__
    raw = export(
        model,
        given,
        name=called,
        loss=loss,
        dtype=None if dtype is None else _dtype(dtype),
        everything=not contract,
    )
    normalised = normalise(raw.graph, max_sizes, contract=contract)
    graph = normalised.graph
    units = find_units(graph)
    templates = find_templates(graph, units)
    kept = {constant.name for constant in graph.constants}
    return TracedModel(
        graph,
        units,
        templates,
        ModelFingerprint.of(called, graph, units=units, templates=templates),
        normalised.masks,
        model.training,
        {key: value for key, value in raw.constants.items() if key in kept},
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, check_dtype(name))
    assert isinstance(dtype, torch.dtype)
    return dtype
