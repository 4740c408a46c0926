"""The trace that plans and programs are made of, from the inputs of a model by name.

One function, so that the planner and the runtime trace alike: the plan remembers the fingerprint of
what was traced. Sizes are named: B is the number of documents of a micro-batch, S and S_something
are lengths; other sizes are ints.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from torch import nn

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import Size
from shardwise.ir.plan import Plan
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace import TracedModel, trace
from shardwise.ir.trace_export import LossFunction
from shardwise.ir.trace_inputs import InputLike

Inputs = Mapping[str, InputLike]
"""What a model reads, by the names of the arguments of its forward."""

LANGUAGE_INPUTS: Final[Inputs] = {"input_ids": ("B", "S"), "labels": ("B", "S")}
"""Of a language model that returns its loss."""
LARGEST_BATCH: Final = 1 << 20
"""Documents of a micro-batch that the trace holds for."""


def trace_for_training(
    model: nn.Module,
    inputs: Inputs,
    *,
    compute_dtype: str,
    longest: int,
    loss: LossFunction | None = None,
) -> TracedModel:
    """Trace `model` for every micro-batch up to LARGEST_BATCH documents of `longest` tokens.

    `longest` is the longest padded length: the last edge of the plan's buckets. Masks are
    classified there. `loss` is as in `trace`. Raises InvalidValueError for a size with another
    name than B or S..., UntraceableModelError and the other errors of `trace`.
    """
    names = named_sizes(inputs)
    strange = [name for name in names if name != "B" and not name.startswith("S")]
    if strange:
        raise InvalidValueError(
            f"inputs has the sizes {', '.join(strange)}: a size is B (documents), S or S_something "
            "(lengths), or an int; rename them, or make them ints"
        )
    lengths = [name for name in names if name != "B"]
    return trace(
        model,
        inputs,
        dims={name: (1, LARGEST_BATCH if name == "B" else longest) for name in names},
        loss=loss,
        dtype=compute_dtype,
        max_sizes=dict.fromkeys(lengths, longest),
    )


def trace_of_plan(
    model: nn.Module, plan: Plan, inputs: Inputs | None = None, loss: LossFunction | None = None
) -> TracedModel:
    """Trace `model` as it was traced for `plan` (default: as `trace_language_model` does)."""
    from shardwise.ir.trace_language import trace_language_model  # which imports this module

    dtype = plan.training.compute_dtype
    longest = max(bucket.bucket.ranges[0].high for bucket in plan.buckets)
    if inputs is None and loss is None:
        return trace_language_model(model, compute_dtype=dtype, longest=longest)
    inputs = LANGUAGE_INPUTS if inputs is None else inputs
    return trace_for_training(model, inputs, compute_dtype=dtype, longest=longest, loss=loss)


def named_sizes(inputs: Inputs) -> tuple[str, ...]:
    """The names of sizes that inputs have, each once, in order."""
    found = (str(size) for value in inputs.values() for size in _sizes(value))
    return tuple(dict.fromkeys(name for name in found if name.isidentifier()))


def _sizes(value: InputLike) -> Iterator[Size | str]:
    if isinstance(value, str):
        yield from TensorSpec.parse(value).shape
    elif isinstance(value, TensorSpec):
        yield from value.shape
    elif isinstance(value, tuple | list):
        yield from value
