"""The one process that a distributed program is compared with: the module itself, in float64.

Every document runs alone and unpadded through the model's own code, so that tracing,
normalisation, padding and batching are checked as well as the sharding. Casts of the model to
narrower floats are lifted to float64 (`Lifting`), as they are in the graph (ir/lift.py).
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.ir.trace import TracedModel
from shardwise.ir.trace_export import LossFunction
from shardwise.runtime.interpreter import interpret, module_values
from shardwise.runtime.verify_data import Document

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Lifting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which every dtype that an operator is asked for is float64 if it is a float."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the operator with float64 in place of narrower floats."""
        wide = {key: _wide(value) for key, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **wide)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


@dataclass(frozen=True)
class StepResult:
    """What one step must give: mean loss, gradients before and after clipping, weights after it."""

    loss: float
    gradients: Mapping[str, torch.Tensor]
    norm: float
    """2-norm of all gradients before clipping."""
    clipped: Mapping[str, torch.Tensor]
    weights: Mapping[str, torch.Tensor]


class Reference:
    """Model, optimizer and gradients of the one process."""

    def __init__(
        self,
        model: nn.Module,
        traced: TracedModel,
        loss: LossFunction | None,
        trainable: Mapping[str, bool],
        learning_rate: float,
    ) -> None:
        self.model, self.traced, self.loss = model, traced, loss
        for module in model.modules():  # grouped products have no float64 in eager PyTorch
            if getattr(getattr(module, "config", None), "_experts_implementation", None):
                module.config._experts_implementation = "eager"  # type: ignore[union-attr]
        taken = inspect.signature(model.forward).parameters
        every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        names = (item.name for item in traced.graph.inputs)
        self._accepted = [name for name in names if every or name in taken]
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._names = [p.name for p in traced.graph.parameters if trainable[p.name]]
        trained = list(dict.fromkeys(self._source(name) for name in self._names))
        for parameter in model.parameters():
            parameter.requires_grad_(any(parameter is self._parameters[n] for n in trained))
        self.optimizer = torch.optim.AdamW(
            [self._parameters[name] for name in trained], lr=learning_rate
        )

    def _source(self, name: str) -> str:
        """The model's parameter that a parameter of the graph is, or is a section of."""
        found = next(p for p in self.traced.graph.parameters if p.name == name)
        return found.section.source if found.section is not None else name

    def step(self, documents: Iterable[Document], clip_norm: float | None) -> StepResult:
        """One AdamW step on the mean loss of the documents."""
        total, weight = 0.0, 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for document in documents:
            count = self._weight(document)
            if count == 0:
                continue
            loss = self._loss(document, count)
            loss.backward()  # type: ignore[no-untyped-call]
            total, weight = total + float(loss.detach()), weight + count
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in trained:
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = grad / weight
        gradients = self._values(of_grad=True)
        squares = [p.grad.square().sum() for p in trained if p.grad is not None]
        norm = float(torch.stack(squares).sum().sqrt())
        if clip_norm is not None and norm > clip_norm:
            for parameter in trained:
                assert parameter.grad is not None
                parameter.grad.mul_(clip_norm / norm)
        clipped = self._values(of_grad=True)
        self.optimizer.step()
        return StepResult(total / weight, gradients, norm, clipped, self._values(of_grad=False))

    def _values(self, *, of_grad: bool) -> dict[str, torch.Tensor]:
        return {name: self._value(name, of_grad=of_grad) for name in self._names}

    def _value(self, name: str, *, of_grad: bool) -> torch.Tensor:
        parameter = self._parameters[self._source(name)]
        value = parameter.grad if of_grad else parameter
        assert value is not None
        section = next(p for p in self.traced.graph.parameters if p.name == name).section
        if section is not None:
            value = value.narrow(section.dim, section.start, section.stop - section.start)
        return value.detach().clone()

    def _batched(self, document: Document) -> dict[str, torch.Tensor]:
        return {name: value.unsqueeze(0) for name, value in document.items()}

    def _weight(self, document: Document) -> float:
        """What the document's mean loss counts for: the second output of the graph."""
        values = module_values(self.model, self.traced.graph, self.traced.constants)
        with torch.no_grad():
            return float(interpret(self.traced.graph, {**values, **self._batched(document)})[1])

    def _loss(self, document: Document, weight: float) -> torch.Tensor:
        """The summed loss of one document, by the model's own code."""
        batched = self._batched(document)
        with Lifting():  # type: ignore[no-untyped-call]
            outputs = self.model(**{name: batched[name] for name in self._accepted})
            if self.loss is not None:
                outputs = self.loss(outputs, batched)
                if isinstance(outputs, tuple | list):
                    first: torch.Tensor = outputs[0]
                    return first
                mean: torch.Tensor = outputs
                return mean * weight
            return _loss_of(outputs) * weight


def _loss_of(outputs: Any) -> torch.Tensor:
    """The mean loss among what a model returns, as the trace takes it."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    while not isinstance(loss, torch.Tensor):
        outputs = loss = outputs[0] if not isinstance(outputs, torch.Tensor) else outputs
    return loss
