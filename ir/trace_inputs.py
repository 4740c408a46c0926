"""The inputs of a trace: shapes in named sizes, the ranges of these, and example tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import GraphInput, SymbolRange
from shardwise.ir.scanner import shown
from shardwise.ir.tensor import TensorSpec

InputLike: TypeAlias = "torch.Tensor | TensorSpec | str | Sequence[str | int]"
"""A tensor (its shape is fixed), `TensorSpec`, its text "float32[B, S, 64]", or for int64 inputs
the sizes alone: ("B", "S")."""

_EXAMPLES: Final = (48, 80, 112, 176, 208, 272)
"""Sizes of the example: even, so that halves exist, and none a usual feature size."""
_BATCH_EXAMPLES: Final = (3, 5, 7, 11)


@dataclass(frozen=True)
class TraceInputs:
    """Inputs by name, in order, with the ranges of the named sizes."""

    inputs: tuple[GraphInput, ...]
    ranges: dict[str, tuple[int, int]]
    """Name -> smallest and largest size, for every named size."""

    def symbols(self) -> tuple[SymbolRange, ...]:
        """The named sizes in order of appearance."""
        return tuple(SymbolRange(name, *ends) for name, ends in self.ranges.items())

    def examples(self) -> dict[str, int]:
        """A size for every name: at least 2 (torch treats 1 as a constant), all different."""
        chosen: dict[str, int] = {}
        for name, (low, high) in self.ranges.items():
            wanted = _BATCH_EXAMPLES if name.startswith("B") else _EXAMPLES
            free = [n for n in (*wanted, *range(high, max(low, 2) - 1, -1))
                    if max(low, 2) <= n <= high and n not in chosen.values()]  # fmt: skip
            chosen[name] = free[0] if free else high
        return chosen

    def tensors(self) -> list[torch.Tensor]:
        """Example tensors of zeros, in the order of the inputs."""
        sizes = self.examples()
        return [
            torch.zeros(
                tuple(int(dim) for dim in item.spec.at(sizes).shape),
                dtype=getattr(torch, item.spec.dtype),
            )
            for item in self.inputs
        ]

    def dynamic_shapes(self) -> list[dict[int, Any]]:
        """Per input, the dims that are named sizes, as torch.export takes them."""
        dims = {
            name: torch.export.Dim(name, min=low, max=high)
            for name, (low, high) in self.ranges.items()
        }
        return [
            {
                index: dims[dim.name]
                for index, dim in enumerate(item.spec.shape)
                if not isinstance(dim, int)
            }
            for item in self.inputs
        ]


def trace_inputs(
    inputs: Mapping[str, InputLike], dims: Mapping[str, tuple[int, int]]
) -> TraceInputs:
    """Check and convert the arguments of `trace`; raises InvalidValueError."""
    if not inputs:
        raise InvalidValueError(
            'inputs is empty: name what the model reads, e.g. {"input_ids": ("B", "S")}'
        )
    specs = {name: _spec(name, value) for name, value in inputs.items()}
    ranges: dict[str, tuple[int, int]] = {}
    fixed: dict[str, int] = {}
    for name, spec in specs.items():
        for dim in spec.shape:
            if isinstance(dim, int):
                continue
            if not dim.is_Symbol:
                raise InvalidValueError(
                    f"input {name} has the size {dim}: sizes of inputs are names or ints; give "
                    "the product a name of its own"
                )
            low, high = _range(dim.name, dims)
            if high == 1:
                fixed[dim.name] = 1
            else:
                ranges[dim.name] = (low, high)
    unused = sorted(set(dims) - set(ranges) - set(fixed))
    if unused:
        raise InvalidValueError(
            f"dims has ranges for {', '.join(unused)}, which no input has; sizes of the inputs are "
            f"{', '.join(sorted({*ranges, *fixed})) or 'all fixed'}"
        )
    return TraceInputs(
        tuple(
            GraphInput(
                name,
                TensorSpec(
                    tuple(d if isinstance(d, int) else fixed.get(d.name, d) for d in spec.shape),
                    spec.dtype,
                ),
            )
            for name, spec in specs.items()
        ),
        ranges,
    )


def _spec(name: str, value: InputLike) -> TensorSpec:
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    if isinstance(value, TensorSpec):
        return value
    if isinstance(value, str):
        return TensorSpec.parse(value)
    if isinstance(value, tuple | list) and all(type(item) in (str, int) for item in value):
        return TensorSpec(
            tuple(symbol(item) if isinstance(item, str) else item for item in value), "int64"
        )
    raise InvalidValueError(
        f'input {name} is {shown(value)}: give sizes like ("B", "S") for int64, a text like '
        '"float32[B, S, 64]", a TensorSpec or a tensor'
    )


def _range(name: str, dims: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    ends = dims.get(name)
    if (
        not isinstance(ends, tuple)
        or len(ends) != 2
        or not all(type(end) is int for end in ends)
        or not 1 <= ends[0] <= ends[1]
    ):
        raise InvalidValueError(
            f"dims gives {name} the range {shown(ends)}: give (smallest, largest) with "
            f'1 <= smallest <= largest, e.g. dims={{"{name}": (1, 8192)}}'
        )
    return ends
