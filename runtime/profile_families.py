"""The operators that memory bounds, by efficiency key, as training asks for them."""

from collections.abc import Callable
from typing import Final

from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.tensor import TensorSpec
from shardwise.runtime.profile_operator import WIDTH, Work, work

ROW: Final = 256
"""Of rows that are normalised or looked up as a whole."""

Family = Callable[[str, int], list[Work]]
"""From a dtype and a number of elements to operators, which are timed together."""


def _pointwise(kind: str, approximate: str | None = None) -> Family:
    named: tuple[tuple[str, Argument], ...] = ()
    if approximate is not None:
        named = (("approximate", approximate),)

    def family(dtype: str, n: int) -> list[Work]:
        text = f"{dtype}[{n // WIDTH}, {WIDTH}]"
        return [work(kind, [text], text, named=named)]

    return family


def _add(dtype: str, n: int) -> list[Work]:
    text = f"{dtype}[{n // WIDTH}, {WIDTH}]"
    return [work("add.Tensor", [text, text], text)]


def _mul(dtype: str, n: int) -> list[Work]:
    """As training asks: by a column (norms), a row (scales), a table without gradient (rotary
    positions), and of two equal tensors (gates)."""
    text, rows = f"{dtype}[{n // WIDTH}, {WIDTH}]", n // WIDTH
    return [
        work("mul.Tensor", [text, f"{dtype}[{rows}, 1]"], text),
        work("mul.Tensor", [f"{dtype}[{WIDTH}]", text], text),
        work("mul.Tensor", [text, text], text, needs=(True, False)),
        work("mul.Tensor", [text, text], text),
    ]


def _power(dtype: str, n: int) -> list[Work]:
    text = f"{dtype}[{n // WIDTH}, {WIDTH}]"
    return [work("pow.Tensor_Scalar", [text], text, 2)]


def _mean(dtype: str, n: int) -> list[Work]:
    rows = n // WIDTH
    one = work("mean.dim", [f"{dtype}[{rows}, {WIDTH}]"], f"{dtype}[{rows}, 1]", (-1,), True)
    return [one]


def _cat(dtype: str, n: int) -> list[Work]:
    rows = n // WIDTH
    half = f"{dtype}[{rows}, {WIDTH // 2}]"
    return [work("cat.default", [half, half], f"{dtype}[{rows}, {WIDTH}]", -1, listed=True)]


def _softmax(dtype: str, n: int) -> list[Work]:
    text = f"{dtype}[{n // ROW}, {ROW}]"
    return [work("softmax.int", [text], text, -1)]


def _layer_norm(dtype: str, n: int) -> list[Work]:
    text, row = f"{dtype}[{n // ROW}, {ROW}]", f"{dtype}[{ROW}]"
    operator = work("layer_norm.default", [text], text, (ROW,)).operator
    args = (Ref("v0"), (ROW,), Ref("v1"), Ref("v2"))
    specs = tuple(TensorSpec.parse(one) for one in (text, row, row))
    scaled = Operator("work", operator.kind, args, (), operator.outputs)
    return [Work(scaled, specs, (True, True, True))]


def _rms_norm(dtype: str, n: int) -> list[Work]:
    text, row = f"{dtype}[{n // ROW}, {ROW}]", f"{dtype}[{ROW}]"
    specs = (TensorSpec.parse(text), TensorSpec.parse(row))
    args = (Ref("v0"), (ROW,), Ref("v1"))
    return [
        Work(Operator("work", "aten.rms_norm.default", args, (), specs[:1]), specs, (True,) * 2)
    ]


def _embedding(dtype: str, n: int) -> list[Work]:
    rows = n // WIDTH
    operands = [f"{dtype}[{ROW}, {WIDTH}]", f"int64[{rows}]"]
    one = work("embedding.default", operands, f"{dtype}[{rows}, {WIDTH}]", needs=(True, False))
    return [one]


def _cross_entropy(dtype: str, n: int) -> list[Work]:
    rows = n // ROW
    operands = [f"{dtype}[{rows}, {ROW}]", f"int64[{rows}]"]
    return [work("cross_entropy_loss.default", operands, f"{dtype}[]", needs=(True, False))]


FAMILIES: Final[dict[str, Family]] = {
    "memory": _add,
    "memory.mul": _mul,
    "memory.pow": _power,
    "memory.mean": _mean,
    "memory.cat": _cat,
    "memory.neg": _pointwise("neg.default"),
    "memory.silu": _pointwise("silu.default"),
    "memory.gelu": _pointwise("gelu.default"),
    "memory.gelu_tanh": _pointwise("gelu.default", approximate="tanh"),
    "memory.relu": _pointwise("relu.default"),
    "memory.softmax": _softmax,
    "memory.layer_norm": _layer_norm,
    "memory.rms_norm": _rms_norm,
    "memory.embedding": _embedding,
    "memory.cross_entropy_loss": _cross_entropy,
}
"""Efficiency key -> its operators. What has no key of its own is priced as `memory`."""
