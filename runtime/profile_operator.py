"""One operator on real tensors, to be timed: with the FLOP and bytes that ir/flops.py counts, so
that a measured efficiency multiplies what the planner's formula divides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from shardwise.ir.flops import backward_flops, backward_moved, flops, moved
from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.tensor import TensorSpec
from shardwise.runtime.emit import aten
from shardwise.runtime.profile_samples import Case

WIDTH: Final = 64
"""Of rows of pointwise operators, and one over the largest index."""
SMALL: Final = 1 << 18
COPIES: Final = 8
"""Copies of an operator that moves less than SMALL bytes in one timing, so that starting autograd
is not timed with each."""


@dataclass(frozen=True)
class Work:
    """One operator on tensors of these specs."""

    operator: Operator
    specs: tuple[TensorSpec, ...]
    needs: tuple[bool, ...]
    """Whether each operand needs a gradient."""

    @property
    def forward_bytes(self) -> int:
        """As the planner counts them."""
        return int(moved(self.operator, self.specs))

    @property
    def backward_bytes(self) -> int:
        """As the planner counts them."""
        return int(backward_moved(self.operator, self.specs, self.needs))

    @property
    def forward_flops(self) -> int:
        """As the planner counts them."""
        return int(flops(self.operator, self.specs))

    @property
    def backward_flops(self) -> int:
        """As the planner counts them."""
        return int(backward_flops(self.operator, self.specs, self.needs))

    def run(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The operator on some operands."""
        operands = iter(tensors)

        def value(argument: Argument) -> Any:
            if isinstance(argument, Ref):
                return next(operands)
            return [value(item) for item in argument] if isinstance(argument, tuple) else argument

        args = [value(item) for item in self.operator.args]
        result = aten(self.operator)(*args, **dict(self.operator.kwargs))
        return result if isinstance(result, torch.Tensor) else result[0]

    @property
    def copies(self) -> int:
        """How many of it one timing takes, each on operands of its own."""
        return COPIES if self.forward_bytes < SMALL else 1

    def operands(self, device: torch.device) -> list[torch.Tensor]:
        """New operands: normal numbers, and small indices."""
        found = []
        for spec, needed in zip(self.specs, self.needs, strict=True):
            shape = [int(length) for length in spec.shape]
            dtype = getattr(torch, spec.dtype)
            if dtype.is_floating_point:
                x = torch.randn(shape, device=device).to(dtype)
                found.append(x.requires_grad_(needed))
            else:
                found.append(torch.randint(0, WIDTH, shape, device=device))
        return found


def work(
    kind: str,
    operands: Sequence[str],
    output: str,
    *more: Argument,
    needs: Sequence[bool] | None = None,
    listed: bool = False,
    named: tuple[tuple[str, Argument], ...] = (),
) -> Work:
    """A call of `aten.<kind>` on tensors of these specs, then further arguments."""
    specs = tuple(TensorSpec.parse(text) for text in operands)
    refs = tuple(Ref(f"v{i}") for i in range(len(specs)))
    args: tuple[Argument, ...] = ((refs,) if listed else refs) + more
    operator = Operator("work", f"aten.{kind}", args, named, (TensorSpec.parse(output),))
    gradients = tuple(needs) if needs is not None else (True,) * len(specs)
    return Work(operator, specs, gradients)


def forward_case(key: str, x: float, works: Sequence[Work], device: torch.device) -> Case:
    """Forwards of some operators in a row, with the graph that training needs."""
    ready = [(one, one.operands(device)) for one in works for _ in range(one.copies)]

    def run() -> object:
        return [one.run(tensors) for one, tensors in ready]  # all results alive, as in training

    return Case(key, x, run, len(ready))


def backward_case(key: str, x: float, works: Sequence[Work], device: torch.device) -> Case:
    """Backwards of some operators in one run of autograd; their forward is not timed."""
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    for one in works:
        for _ in range(one.copies):
            tensors = one.operands(device)
            outputs.append(one.run(tensors))
            inputs += [tensor for tensor in tensors if tensor.requires_grad]
    gradients = [torch.randn_like(output) for output in outputs]

    def run() -> object:
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    return Case(key, x, run, len(outputs))
