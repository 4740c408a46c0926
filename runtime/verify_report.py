"""What a verification reports: the largest differences, the tolerances, and whether it passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

GRADIENT_TOLERANCE = 1e-11
"""Of loss and gradients: largest difference over the tensor's largest element."""
WEIGHT_TOLERANCE = 1e-9
"""Of weights after all steps; AdamW divides by small second moments, which magnifies rounding."""
GRADIENT_FLOOR = 1e-5
"""Of the global gradient norm: a tensor whose gradient is smaller is compared with this."""
WEIGHT_FLOOR = 1e-2
"""Of the model's largest weight, likewise."""
RATIO_TOLERANCE = 4.0
"""Of our error in the plan's own dtype over the error of the module in that dtype."""

Errors = Mapping[str, float]
"""Largest relative difference by parameter."""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Largest differences of one step, over all ranks."""

    loss: float
    gradient: float
    gradient_of: str
    """The parameter with the largest."""
    weight: float
    weight_of: str

    def within(self) -> bool:
        """Whether all are inside the tolerances; nan is not."""
        return (
            self.loss <= GRADIENT_TOLERANCE
            and self.gradient <= GRADIENT_TOLERANCE
            and self.weight <= WEIGHT_TOLERANCE
        )


@dataclass(frozen=True, slots=True)
class Precision:
    """Errors in the plan's own dtype, as multiples of those that the module itself makes in it."""

    dtype: str
    """Compute dtype of the plan."""
    loss: float
    gradient: float
    gradient_of: str
    """The parameter with the largest."""
    weight: float
    weight_of: str

    def within(self) -> bool:
        """Whether no ratio is over the tolerance; nan is."""
        return all(ratio <= RATIO_TOLERANCE for ratio in (self.loss, self.gradient, self.weight))

    def __str__(self) -> str:
        return (
            f"{self.dtype}: errors over the module's own: loss {self.loss:.2f}, gradients "
            f"{self.gradient:.2f} ({self.gradient_of}), weights {self.weight:.2f} "
            f"({self.weight_of})"
        )


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and how far apart it was. Printed by `str`."""

    covered: tuple[str, ...]
    steps: tuple[StepErrors, ...]
    failure: str = ""
    """How a rank failed, where one did."""
    precision: Precision | None = None
    """Of the second run, in the plan's own dtype; None where there was none."""

    @property
    def passed(self) -> bool:
        """All steps ran and all differences are inside the tolerances."""
        narrow = self.precision is None or self.precision.within()
        wide = bool(self.steps) and all(step.within() for step in self.steps)
        return not self.failure and wide and narrow

    def __str__(self) -> str:
        lines = list(self.covered)
        for number, step in enumerate(self.steps, 1):
            lines.append(
                f"step {number}: loss {step.loss:.1e}, gradients {step.gradient:.1e} "
                f"({step.gradient_of}), weights {step.weight:.1e} ({step.weight_of})"
            )
        if self.failure:
            lines.append(f"failed: {self.failure}")
        if self.precision is not None:
            lines.append(str(self.precision))
        limits = f"loss and gradients <= {GRADIENT_TOLERANCE:g}, weights <= {WEIGHT_TOLERANCE:g}"
        narrow = f"; ratios <= {RATIO_TOLERANCE:g}" if self.precision is not None else ""
        verdict = "passed" if self.passed else "NOT PASSED"
        lines.append(f"{verdict} ({limits}, relative, float64{narrow})")
        return "\n".join(lines)


def gradient_errors(found: Tensors, wanted: Tensors) -> Errors:
    """Relative max-norm errors; gradients below the floor are compared with it."""
    norm = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
    return {
        name: _difference(found[name], g, max(size(g), GRADIENT_FLOOR * norm))
        for name, g in wanted.items()
    }


def weight_errors(found: Tensors, wanted: Tensors) -> Errors:
    """Relative max-norm errors; small weights are compared with a share of the largest."""
    largest = max(size(w) for w in wanted.values())
    return {
        name: _difference(found[name], w, max(size(w), WEIGHT_FLOOR * largest))
        for name, w in wanted.items()
    }


def size(tensor: torch.Tensor) -> float:
    """The largest magnitude of a tensor."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _difference(found: torch.Tensor, wanted: torch.Tensor, scale: float) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    error = size(found - wanted)
    return error / scale if scale > 0 else error


def order(error: float) -> tuple[bool, float]:
    """Larger errors come later, nan last of all."""
    return error != error, error


def largest(errors: Errors) -> tuple[float, str]:
    """The largest error and whose it is."""
    name = max(errors, key=lambda key: order(errors[key]))
    return errors[name], name


def worst(ranks: Sequence[StepErrors]) -> StepErrors:
    """The largest errors of one step over its ranks."""
    gradient = max(ranks, key=lambda rank: order(rank.gradient))
    weight = max(ranks, key=lambda rank: order(rank.weight))
    loss = max((rank.loss for rank in ranks), key=order)
    return StepErrors(
        loss, gradient.gradient, gradient.gradient_of, weight.weight, weight.weight_of
    )
