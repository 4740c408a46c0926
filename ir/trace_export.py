"""Runs `torch.export` on a model and its loss, and hands the result to the converter."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from shardwise.ir.argument import Ref
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import Constant, OperatorGraph, Parameter
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace_convert import Converter
from shardwise.ir.trace_errors import explained, narrowed
from shardwise.ir.trace_fake import remembering
from shardwise.ir.trace_fakes import library_settings, without_weights
from shardwise.ir.trace_inputs import TraceInputs
from shardwise.ir.trace_sizes import Sizes

LossFunction: TypeAlias = Callable[[Any, Mapping[str, torch.Tensor]], Any]
"""(outputs of the model, inputs by name) -> mean loss, or (loss_sum, weight)."""

_MODEL = "traced_model"
_ATTEMPTS = 3
"""Traces at most: a model may hold for fewer sizes than asked, and torch says for which."""


@dataclass(frozen=True)
class RawTrace:
    """A trace as converted, before any normalisation."""

    graph: OperatorGraph
    constants: Mapping[str, torch.Tensor]
    """Values of the constants that are not the model's buffers, by name in the graph."""
    ranges: Mapping[str, tuple[int, int]]
    """The ranges of sizes for which it holds."""


class _Entry(nn.Module):
    """What is traced: the model on its inputs, and the loss of its outputs."""

    def __init__(
        self, model: nn.Module, names: list[str], loss: LossFunction | None, everything: bool
    ) -> None:
        super().__init__()
        self.add_module(_MODEL, model)
        self.names, self.loss, self.everything = names, loss, everything
        self.accepted = [name for name in names if accepts(model, name)]
        self.training = model.training

    def forward(self, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
        given = dict(zip(self.names, tensors, strict=True))
        model = getattr(self, _MODEL)
        outputs = model(**{name: given[name] for name in self.accepted})
        if self.loss is not None:
            outputs = self.loss(outputs, given)
            return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        if self.everything:
            return tuple(_tensors(outputs))
        return (loss_of(outputs),)


def export(
    model: nn.Module,
    inputs: TraceInputs,
    *,
    name: str,
    loss: LossFunction | None,
    dtype: torch.dtype | None,
    everything: bool,
) -> RawTrace:
    """Trace `model`; raises UntraceableModelError with module and source line."""
    names = [item.name for item in inputs.inputs]
    if loss is None:
        unknown = [name for name in names if not accepts(model, name)]
        if unknown:
            raise InvalidValueError(
                f"inputs has {', '.join(unknown)}, which {type(model).__name__}.forward does not "
                f"take; it takes {', '.join(inspect.signature(model.forward).parameters)}"
            )
    entry = _Entry(model, names, loss, everything)
    with library_settings(model), without_weights(model, dtype):
        for attempt in range(_ATTEMPTS):
            try:
                with remembering():
                    program = torch.export.export(
                        entry, (inputs.tensors(),),
                        dynamic_shapes=(inputs.dynamic_shapes(),), strict=False,
                    )  # fmt: skip
                break
            except Exception as error:
                ranges = narrowed(error, inputs.ranges)
                if ranges is None or attempt == _ATTEMPTS - 1:
                    raise explained(error, model, name) from error
                inputs = TraceInputs(inputs.inputs, ranges)
        return _converted(program, entry, inputs)


def _converted(
    program: torch.export.ExportedProgram, entry: _Entry, inputs: TraceInputs
) -> RawTrace:
    """The frozen graph of an exported program; called while the model is fake."""
    parameters, parameter_names = _parameters(entry)
    buffer_names = _first_names(entry.named_buffers(remove_duplicate=False))
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    sizes, refs = Sizes({}), {}
    constants: dict[str, Constant] = {}
    values: dict[str, torch.Tensor] = {}
    remaining = iter(inputs.inputs)
    folded: list[tuple[str, torch.Tensor]] = []
    for spec in program.graph_signature.input_specs:
        target = (spec.target or "").removeprefix(f"{_MODEL}.")
        if spec.kind is InputKind.PARAMETER:
            refs[spec.arg.name] = Ref(parameter_names[target])
        elif spec.kind is InputKind.USER_INPUT:
            item = next(remaining)
            refs[spec.arg.name] = Ref(item.name)
            _name_sizes(placeholders[spec.arg.name].meta["val"], item.spec, sizes)
        elif spec.kind is InputKind.BUFFER:
            name = buffer_names[target]
            refs[spec.arg.name] = Ref(name)
            value = placeholders[spec.arg.name].meta["val"]
            constants[name] = Constant(name, _spec(value), bool(spec.persistent))
        else:
            value = program.constants[str(spec.target)]
            is_fake = isinstance(value, torch._subclasses.FakeTensor)
            if target.startswith("lifted_tensor") and value.numel() == 1 and not is_fake:
                folded.append((spec.arg.name, value))
                continue
            refs[spec.arg.name] = Ref(target)
            constants[target] = Constant(target, _spec(value))
            if not is_fake:
                values[target] = value
    taken = {*(i.name for i in inputs.inputs), *(p.name for p in parameters), *constants}
    taken |= {alias for parameter in parameters for alias in parameter.aliases}
    converter = Converter(sizes, refs, f"{_MODEL}.", taken)
    for name, value in folded:
        refs[name] = converter.constant(name, value.item(), _spec(value))
    outputs = converter.convert(program.graph)
    graph = OperatorGraph(
        inputs.inputs,
        tuple(parameters),
        tuple(constants.values()),
        tuple(converter.operators),
        tuple(outputs),
        inputs.symbols(),
    )
    return RawTrace(graph, values, dict(inputs.ranges))


def _parameters(entry: nn.Module) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters, tied ones once, and the name that stands for every name."""
    found = [
        (name.removeprefix(f"{_MODEL}."), value)
        for name, value in entry.named_parameters(remove_duplicate=False)
    ]
    groups: dict[int, list[str]] = {}
    for name, value in found:
        groups.setdefault(id(value), []).append(name)
    by_id = {id(value): value for _, value in found}
    parameters = [
        Parameter(names[0], _spec(by_id[key]), by_id[key].requires_grad, tuple(names[1:]))
        for key, names in groups.items()
    ]
    return parameters, {name: names[0] for names in groups.values() for name in names}


def _first_names(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    first: dict[int, str] = {}
    result = {}
    for name, value in named:
        name = name.removeprefix(f"{_MODEL}.")
        result[name] = first.setdefault(id(value), name)
    return result


def _name_sizes(value: torch.Tensor, spec: TensorSpec, sizes: Sizes) -> None:
    for size, dim in zip(value.shape, spec.shape, strict=True):
        if isinstance(size, torch.SymInt) and not isinstance(dim, int):
            sizes.names[size.node.expr] = dim.name


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch.")
    )


def accepts(model: nn.Module, name: str) -> bool:
    """Whether the model's forward takes an argument of that name."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def loss_of(outputs: Any) -> Any:
    """The loss among what a model returns: its `loss`, a first scalar, or the only tensor."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = list(_tensors(outputs))
    if not tensors:
        raise InvalidValueError(
            f"the model returns {type(outputs).__name__} without a tensor: return a loss, or pass "
            "loss="
        )
    return tensors[0]


def _tensors(outputs: Any) -> Iterable[torch.Tensor]:
    leaves = outputs.values() if isinstance(outputs, Mapping) else outputs
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if not isinstance(leaves, Iterable) or isinstance(leaves, str):
        return []
    return [tensor for leaf in leaves for tensor in _tensors(leaf)]
