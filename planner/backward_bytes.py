"""What the backward of one call makes: gradients of its operands, and memory while it runs.

As eager PyTorch's derivative formulas do it on CPU (derivatives.yaml, FunctionsManual.cpp).
"""

from collections.abc import Sequence
from typing import Final

import sympy

from shardwise.ir.flops import nbytes
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, local_spec

_SAME: Final = frozenset({
    "reshape", "view", "transpose", "permute", "unsqueeze", "squeeze", "t", "alias", "clone",
    "contiguous", "cat", "sum", "_unsafe_view", "flatten", "unflatten", "movedim",
})  # fmt: skip
"""The operand's gradient is the result's, or a view of it."""
_PASSED: Final = frozenset({"add", "sub", "rsub"})
"""Likewise where no broadcast is undone."""
_TEMPORARIES: Final = {"pow": 2, "rsqrt": 2, "cross_entropy_loss": 1}
"""Tensors of the operand's size that live while the kernel runs."""


def gradients_of(
    step: Call, needs: Sequence[bool], mesh: Mesh
) -> tuple[list[sympy.Expr | None], sympy.Expr]:
    """(size of the gradient of each operand, or None where it takes no memory; bytes of
    temporaries)."""
    name = step.operator.kind.split(".")[1]
    result = local_spec(step.operator.outputs[0], step.writes[0].gradient, mesh)
    sizes: list[sympy.Expr | None] = []
    temporary = sympy.S.Zero
    for spec, layout, need in zip(step.operand_specs, step.reads, needs, strict=True):
        operand = local_spec(spec, layout.forward, mesh)
        size: sympy.Expr | None = nbytes(operand)
        if not need or name in _SAME:
            size = None
        elif name in ("to", "_to_copy"):
            size = None if operand.dtype == result.dtype else size
        elif name in _PASSED and operand.shape == result.shape:
            size = None if operand.dtype == result.dtype and name != "rsub" else size
        elif name in ("mul", "div", "where") and operand.shape != result.shape:
            temporary += nbytes(result)
        sizes.append(size)
    if step.library == "vocabulary_embedding":
        temporary += nbytes(result)
    elif step.library is None:
        count = _TEMPORARIES.get(name, 0)
        if count:
            temporary += count * nbytes(
                local_spec(step.operand_specs[0], step.reads[0].forward, mesh)
            )
    return sizes, temporary
