"""The reference interpreter: runs an OperatorGraph on whole tensors, operator by operator.

What a distributed program must equal; tests compare it with the module itself, and `verify` with
the emitted programs.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import sympy
import torch
from torch import nn

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import evaluate
from shardwise.ir.graph import GraphInput, OperatorGraph, Parameter
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import leaves
from shardwise.runtime.emit import aten, returns_list, torch_attribute

Around = Callable[[Operator], AbstractContextManager[object]]
"""Entered around the run of each operator: to count, time or record what it does."""


def interpret(
    graph: OperatorGraph,
    values: Mapping[str, torch.Tensor],
    *,
    around: Around = lambda operator: nullcontext(),
) -> tuple[torch.Tensor, ...]:
    """The outputs of the graph.

    `values` hold every input, parameter and constant by name (see `module_values`), on one device;
    gradients flow to those that require them. Sizes are read from the inputs. Raises
    InvalidValueError for a missing value or for a shape that the graph does not have,
    UnsupportedError for an operator that this torch lacks. Buffers that the graph updates are not
    written; see `graph.updates`.
    """
    missing = [item.name for item in leaves(graph) if item.name not in values]
    if missing:
        raise InvalidValueError(
            f"no values for {', '.join(missing[:5])}: give every input, parameter and constant of "
            "the graph; module_values makes the last two from a model"
        )
    run = _Run(graph, values)
    for operator in graph.operators:
        target = aten(operator)
        args = [run.argument(value) for value in operator.args]
        kwargs = {key: run.argument(value) for key, value in operator.kwargs}
        if not operator.refs() and any(a.name == "device" for a in target._schema.arguments):
            kwargs["device"] = run.device
        with around(operator):
            result = target(*args, **kwargs)
        if returns_list(target):
            for index, tensor in enumerate(result):
                run.values[Ref(operator.name, index)] = tensor
        else:
            run.values[Ref(operator.name)] = result
    return tuple(run.values[ref] for ref in graph.outputs)


def module_values(
    model: nn.Module, graph: OperatorGraph, constants: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Parameters and constants of a graph, by name, as they stand in the model.

    `constants` are those of the trace (`TracedModel.constants`). Sections of a fused parameter are
    cut from it, so gradients reach the model's own parameter. Raises InvalidValueError for a name
    that the model lacks.
    """
    state: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    state.update(model.named_buffers(remove_duplicate=False))
    state.update(constants or {})
    values = {}
    for item in leaves(graph):
        if isinstance(item, GraphInput):
            continue
        section = item.section if isinstance(item, Parameter) else None
        source = section.source if section is not None else item.name
        if source not in state:
            raise InvalidValueError(
                f"the model has no {source}, which the graph reads; trace this model again"
            )
        value = state[source]
        if section is not None:
            value = value.narrow(section.dim, section.start, section.stop - section.start)
        values[item.name] = value
    return values


class _Run:
    """Values and sizes while one interpretation runs."""

    def __init__(self, graph: OperatorGraph, values: Mapping[str, torch.Tensor]) -> None:
        self.values = {Ref(name): value for name, value in values.items()}
        self.sizes: dict[str, int] = {}
        self.device = torch.device("cpu")
        for item in graph.inputs:
            value = values[item.name]
            self.device = value.device
            if len(value.shape) != len(item.spec.shape):
                raise InvalidValueError(
                    f"input {item.name} has shape {tuple(value.shape)}, the graph wants {item.spec}"
                )
            for size, dim in zip(value.shape, item.spec.shape, strict=True):
                name = None if isinstance(dim, int) else dim.name
                wanted = dim if name is None else self.sizes.setdefault(name, size)
                if size != wanted:
                    raise InvalidValueError(
                        f"input {item.name} has shape {tuple(value.shape)}, the graph wants "
                        f"{item.spec} with {name or 'that size'} = {wanted}"
                    )

    def argument(self, value: Argument) -> object:
        """An argument as torch takes it."""
        if isinstance(value, Ref):
            return self.values[value]
        if isinstance(value, tuple):
            return [self.argument(item) for item in value]
        if isinstance(value, Dtype):
            return getattr(torch, value.name)
        if isinstance(value, sympy.Expr):
            return evaluate(value, self.sizes)
        if isinstance(value, str):
            return torch_attribute(value, self.device)
        return value
