"""The model of the accumulator experiment: one process in float64, and per bucket on the mesh.

    loss_sum = sum over tokens of mask * |y - t|^2 / 2,   y = mix(tanh(norm(x) g W1' + b1)) W2'
    + b2

`mix` is the causal mean over the sequence: it makes a sequence cut different from a batch cut,
as attention does, so that `sequence` needs its all-to-all. Shapes: x, y, t [B, S, d]; W1 [f,
d], W2 [d, f]. The backward of every parameter read ends in `ParameterState.deposit`; autograd
sees no parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import Function

from benchmarks.risks.accumulator_collectives import Communicator, Cut
from benchmarks.risks.accumulator_parameter import Bucket, ParameterSpec, ParameterState

EPSILON = 1e-6


def parameter_specs(width: int, hidden: int) -> tuple[ParameterSpec, ...]:
    """The five parameters. Column and row cuts are those of Megatron; the hidden dim is cut."""
    return (
        ParameterSpec("norm.weight", "token", (width,), Cut(0, width), True),
        ParameterSpec("up.weight", "column", (hidden, width), Cut(0, hidden), True),
        ParameterSpec("up.bias", "column", (hidden,), Cut(0, hidden), False),
        ParameterSpec("down.weight", "row", (width, hidden), Cut(1, hidden), True),
        ParameterSpec("down.bias", "token", (width,), Cut(0, width), False),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch over all replicas: x and target [B, S, d], mask [B, S] (0 on padding)."""

    x: torch.Tensor
    target: torch.Tensor
    mask: torch.Tensor


def causal_mean(x: torch.Tensor) -> torch.Tensor:
    """Mean over positions 0..s of dim 1."""
    count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return x.cumsum(1) / count[:, None]


def normalise(x: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm without its scale."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


def loss_sum(y: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Sum over tokens, not a mean: a rank without a token contributes 0, never nan."""
    return (batch.mask[..., None] * (y - batch.target).pow(2)).sum() / 2


def reference_output(x: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The whole model in one process."""
    hidden = (normalise(x) * values["norm.weight"]) @ values["up.weight"].T + values["up.bias"]
    return causal_mean(torch.tanh(hidden)) @ values["down.weight"].T + values["down.bias"]


class Scale(Function):
    """x * g, token by token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: ParameterState) -> torch.Tensor:
        """x [b, s, d]."""
        ctx.save_for_backward(x)
        ctx.parameter = parameter
        return x * parameter.read()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Reads the scale again."""
        (x,) = ctx.saved_tensors
        ctx.parameter.deposit((gradient * x).sum((0, 1)))
        return gradient * ctx.parameter.read(), None


class Linear(Function):
    """x W' with W as the bucket cuts it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: ParameterState) -> torch.Tensor:
        """x [b, s, in]."""
        ctx.save_for_backward(x)
        ctx.parameter = parameter
        return x @ parameter.read().T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Reads the weight again; it is not kept by autograd."""
        (x,) = ctx.saved_tensors
        ctx.parameter.deposit(gradient.flatten(0, 1).T @ x.flatten(0, 1))
        return gradient @ ctx.parameter.read(), None


class AddBias(Function):
    """x + b."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: ParameterState) -> torch.Tensor:
        """x [b, s, out]."""
        ctx.parameter = parameter
        return x + parameter.read()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Does not read the bias again."""
        ctx.parameter.deposit(gradient.sum((0, 1)))
        return gradient, None


class Redistribute(Function):
    """An activation from one (forward, gradient) layout pair to another over one flat group."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, communicator: Communicator, axes: tuple[str, ...], kind: str
    ) -> torch.Tensor:
        """`kind` names the pair; `REVERSE` its backward."""
        ctx.communicator, ctx.axes, ctx.kind = communicator, axes, kind
        return move(x, communicator, axes, kind)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The reverse on the gradient."""
        moved = move(gradient, ctx.communicator, ctx.axes, REVERSE[ctx.kind])
        return moved, None, None, None


REVERSE = {
    "gather": "scatter_sum",  # S -> R' : all-gather / reduce-scatter
    "scatter_sum": "gather",  # P -> S : reduce-scatter / all-gather
    "keep": "sum",  # R -> R' : identity / all-reduce
    "sum": "keep",  # P -> R : all-reduce / identity
    "to_features": "to_sequence",  # S(1) -> S(2) : all-to-all both ways
    "to_sequence": "to_features",
}


def move(
    x: torch.Tensor, communicator: Communicator, axes: tuple[str, ...], kind: str
) -> torch.Tensor:
    """One activation collective; sequence is dim 1, features are dim 2."""
    count = communicator.mesh.size(axes)
    if kind == "keep":
        return x.view_as(x)
    if kind == "sum":
        return communicator.all_reduce(x, axes, "activation")
    if kind == "gather":
        return torch.cat(tuple(communicator.all_gather(x, axes, "activation")), 1)
    if kind == "scatter_sum":
        return communicator.reduce_scatter(torch.stack(x.chunk(count, 1)), axes, "activation")
    cut, joined = (2, 1) if kind == "to_features" else (1, 2)
    parts = communicator.all_to_all(torch.stack(x.chunk(count, cut)), axes, "activation")
    return torch.cat(tuple(parts), joined)


def local_batch(batch: Batch, bucket: Bucket, communicator: Communicator) -> Batch:
    """The documents and positions of this rank."""
    mesh, rank = communicator.mesh, communicator.rank

    def part(x: torch.Tensor, dim: int, axes: tuple[str, ...]) -> torch.Tensor:
        members = mesh.members(rank, axes)
        if x.shape[dim] % len(members):
            raise ValueError(f"dim {dim} of size {x.shape[dim]} is not padded to {len(members)}")
        return x.chunk(len(members), dim)[members.index(rank)]

    cuts = (bucket.axes("batch"), bucket.axes("sequence", "tensor_sequence"))
    x, target, mask = (
        part(part(t, 0, cuts[0]), 1, cuts[1]) for t in (batch.x, batch.target, batch.mask)
    )
    return Batch(x, target, mask)


def bucket_output(
    x: torch.Tensor,
    bucket: Bucket,
    parameters: dict[str, ParameterState],
    communicator: Communicator,
    hidden: int,
) -> torch.Tensor:
    """The model as the bucket computes it; x [b, s, d] is this rank's part."""
    tensor_sequence, tensor = bucket.axes("tensor_sequence"), bucket.axes("tensor")
    sequence = bucket.axes("sequence")

    def go(value: torch.Tensor, axes: tuple[str, ...], kind: str) -> torch.Tensor:
        return _call(Redistribute, value, communicator, axes, kind) if axes else value

    h = _call(Scale, normalise(x), parameters["norm.weight"])
    h = go(go(h, tensor_sequence, "gather"), tensor, "keep")
    h = _call(Linear, h, parameters["up.weight"])
    h = torch.tanh(_call(AddBias, h, parameters["up.bias"]))
    if sequence:
        h = torch.nn.functional.pad(h, (0, -hidden % communicator.mesh.size(sequence)))
        h = go(causal_mean(go(h, sequence, "to_features")), sequence, "to_sequence")[..., :hidden]
    else:
        h = causal_mean(h)
    h = _call(Linear, h, parameters["down.weight"])
    h = go(go(h, tensor_sequence, "scatter_sum"), tensor, "sum")
    return _call(AddBias, h, parameters["down.bias"])


def _call(function: type[Function], *args: object) -> torch.Tensor:
    """`function.apply`, typed."""
    apply: Callable[..., torch.Tensor] = function.apply
    return apply(*args)
