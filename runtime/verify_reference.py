"""The one process that a distributed program is compared with: the module itself.

Every document runs alone and unpadded through the model's own code, so that tracing,
normalisation, padding and batching are checked as well as the sharding. `Reference` is in float64:
casts of the model to narrower floats are lifted to it (`Lifting`), as they are in the graph
(ir/lift.py). `OwnReference` is in the plan's own dtypes.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.ir.trace import TracedModel
from shardwise.ir.trace_export import LossFunction, accepts, loss_of
from shardwise.ir.training import TrainingSpec
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
    loss_sums: tuple[float, ...]
    """Of every document; 0 without a target."""
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
        names = (item.name for item in traced.graph.inputs)
        self._accepted = [name for name in names if accepts(model, name)]
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._sections = {p.name: p.section for p in traced.graph.parameters}
        self._names = [p.name for p in traced.graph.parameters if trainable[p.name]]
        trained = list(dict.fromkeys(self._source(name) for name in self._names))
        for parameter in model.parameters():
            parameter.requires_grad_(any(parameter is self._parameters[n] for n in trained))
        self._masters = self._masters_of({name: self._parameters[name] for name in trained})
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=learning_rate)

    def _masters_of(self, trained: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """What the optimizer steps: the model's own parameters."""
        return trained

    def _source(self, name: str) -> str:
        """The model's parameter that a parameter of the graph is, or is a section of."""
        section = self._sections[name]
        return name if section is None else section.source

    def step(self, documents: Iterable[Document], clip_norm: float | None) -> StepResult:
        """One AdamW step on the mean loss of the documents."""
        sums: list[float] = []
        weight = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for document in documents:
            count = self._weight(document)
            sums.append(self._backward(document, count) if count else 0.0)
            weight += count
        masters = list(self._masters.values())
        for name, master in self._masters.items():
            total = self._summed(name)
            master.grad = torch.zeros_like(master) if total is None else total / weight
        gradients = self._values(of_grad=True)
        largest = math.inf if clip_norm is None else clip_norm
        norm = float(nn.utils.clip_grad_norm_(masters, largest))
        clipped = self._values(of_grad=True)
        self._optimizer.step()
        weights = self._values(of_grad=False)
        return StepResult(sum(sums) / weight, tuple(sums), gradients, norm, clipped, weights)

    def _backward(self, document: Document, count: float) -> float:
        """Add the gradients of one document's summed loss to the masters; returns the sum."""
        loss = self._loss(document, count)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _summed(self, name: str) -> torch.Tensor | None:
        """The sum of a parameter's gradients; None where no document used it."""
        return self._masters[name].grad

    def _values(self, *, of_grad: bool) -> dict[str, torch.Tensor]:
        return {name: self._value(name, of_grad=of_grad) for name in self._names}

    def _value(self, name: str, *, of_grad: bool) -> torch.Tensor:
        parameter = self._masters[self._source(name)]
        value = parameter.grad if of_grad else parameter
        assert value is not None
        section = self._sections[name]
        if section is not None:
            value = value.narrow(section.dim, section.start, section.stop - section.start)
        return value.detach().clone()

    def _batched(self, document: Document) -> dict[str, torch.Tensor]:
        return {
            item.name: document[item.name].unsqueeze(0).to(getattr(torch, item.spec.dtype))
            for item in self.traced.graph.inputs
        }

    def _weight(self, document: Document) -> float:
        """What the document's mean loss counts for: the second output of the graph."""
        values = module_values(self.model, self.traced.graph, self.traced.constants)
        with torch.no_grad():
            return float(interpret(self.traced.graph, {**values, **self._batched(document)})[1])

    def _around(self) -> AbstractContextManager[object]:
        """What the model's own code runs in."""
        return Lifting()  # type: ignore[no-untyped-call]

    def _loss(self, document: Document, weight: float) -> torch.Tensor:
        """The summed loss of one document, by the model's own code."""
        batched = self._batched(document)
        with self._around():
            outputs = self.model(**{name: batched[name] for name in self._accepted})
            if self.loss is not None:
                outputs = self.loss(outputs, batched)
                if isinstance(outputs, tuple | list):
                    first: torch.Tensor = outputs[0]
                    return first
                mean: torch.Tensor = outputs
                return mean * weight
            loss: torch.Tensor = loss_of(outputs)
            return loss * weight


class OwnReference(Reference):
    """The module in a recipe's own dtypes: it computes on copies of the masters, and the gradient
    of each document is added up in the dtype of accumulators."""

    def __init__(
        self,
        model: nn.Module,
        traced: TracedModel,
        loss: LossFunction | None,
        training: TrainingSpec,
        learning_rate: float,
    ) -> None:
        """`model` is in the compute dtype when this returns."""
        self._training = training
        self._sums: dict[str, torch.Tensor] = {}
        trains = {p.name: training.trains(p.name) for p in traced.graph.parameters}
        super().__init__(model, traced, loss, trains, learning_rate)
        cast_parameters(model, getattr(torch, training.compute_dtype))

    def _masters_of(self, trained: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        dtype = getattr(torch, self._training.master_dtype)
        return {
            name: nn.Parameter(parameter.detach().to(dtype, copy=True))
            for name, parameter in trained.items()
        }

    def step(self, documents: Iterable[Document], clip_norm: float | None) -> StepResult:
        """One AdamW step on the masters, which are copied to the model first."""
        with torch.no_grad():
            for name, master in self._masters.items():
                self._parameters[name].copy_(master)
        return super().step(documents, clip_norm)

    def _backward(self, document: Document, count: float) -> float:
        total = super()._backward(document, count)
        dtype = getattr(torch, self._training.accumulate_dtype)
        for name in self._masters:
            grad, self._parameters[name].grad = self._parameters[name].grad, None
            if grad is not None:
                known = self._sums.get(name)
                self._sums[name] = grad.to(dtype) if known is None else known + grad.to(dtype)
        return total

    def _summed(self, name: str) -> torch.Tensor | None:
        total = self._sums.pop(name, None)
        return None if total is None else total.to(self._masters[name].dtype)

    def _around(self) -> AbstractContextManager[object]:
        return nullcontext()


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the floating-point parameters, in place and ties kept; buffers stay as they are."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
