"""Numbers of a program at many sizes, fast: expressions compiled once, layouts as divisors.

The search asks for the same few dozen expressions at hundreds of sizes. Cuts of activations are
even (the executor pads to that), so a local size is the global one divided by the parts.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod

import sympy

from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.expression import Size
from shardwise.ir.layout import Layout, Select, Shard
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call
from shardwise.ir.tensor import TensorSpec


@lru_cache(maxsize=1 << 14)
def _compiled(expression: sympy.Expr) -> tuple[tuple[str, ...], Callable[..., float]]:
    symbols = sorted(expression.free_symbols, key=str)
    return tuple(map(str, symbols)), sympy.lambdify(symbols, expression, modules="math")


def number(expression: Size, sizes: Mapping[str, int]) -> float:
    """The value of an expression at sizes; as `ir.expression.evaluate`, in floats."""
    if isinstance(expression, int):
        return expression
    names, function = _compiled(expression)
    return function(*(sizes[name] for name in names))


@lru_cache(maxsize=1 << 14)
def _elements(shape: tuple[Size, ...]) -> sympy.Expr:
    return sympy.Mul(*shape)


@lru_cache(maxsize=1 << 14)
def parts(layout: Layout, mesh: Mesh) -> int:
    """In how many parts a layout cuts a tensor."""
    return prod(
        mesh.axis(axis).size
        for axis, placement in layout.entries
        if isinstance(placement, Shard | Select)
    )


def local_bytes(spec: TensorSpec, layout: Layout, mesh: Mesh, sizes: Mapping[str, int]) -> int:
    """Bytes per rank of an evenly cut value."""
    elements = number(_elements(spec.shape), sizes)
    return int(elements) // parts(layout, mesh) * DTYPE_BYTES[spec.dtype]


def call_bytes(call: Call, mesh: Mesh, sizes: Mapping[str, int]) -> int:
    """Bytes per rank of a call's operands and results."""
    specs = (*call.operand_specs, *call.operator.outputs)
    layouts = (*call.reads, *call.writes)
    return sum(
        local_bytes(spec, layout.forward, mesh, sizes)
        for spec, layout in zip(specs, layouts, strict=True)
    )
