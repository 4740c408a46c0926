"""Emitted code: size arithmetic, names, arguments; what torch does not know is refused."""

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.argument import Dtype, Ref
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.expression import evaluate, symbol
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call, UnitProgram, Use
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout
from shardwise.runtime.emit import emit_unit

B, S = symbol("B"), symbol("S")
CPU = torch.device("cpu")
WHOLE = ValueLayout.parse("R")


def call(name, kind, args, *shapes, dtype="float32", **kwargs):
    args = tuple(Ref(a[1:]) if isinstance(a, str) and a.startswith("%") else a for a in args)
    outputs = tuple(TensorSpec(shape, dtype) for shape in shapes or ((B,),))
    operator = Operator(name, f"aten.{kind}", args, tuple(kwargs.items()), outputs)
    count = len(tuple(operator.refs()))
    return Call(operator, (WHOLE,) * count, outputs[:1] * count, (WHOLE,) * len(outputs), 1)


def emit(steps, reads=(), writes=(), sizes=("B", "S")):
    unit = UnitProgram("layers.0", tuple(steps), tuple(reads), tuple(writes))
    return emit_unit(unit, sizes, CPU, lambda step: torch.nn.Identity())


def run_size(expression, sizes):
    emitted = emit([call("c", "full.default", ((), expression), ())], writes=("c",))
    (result,) = emitted.module(*sizes.values())
    return result.item()


def expressions():
    leaves = st.sampled_from([B, S, sympy.Integer(2), sympy.Integer(3)])

    def grow(inner):
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda p: p[0] + p[1]), two.map(lambda p: p[0] * p[1]),
            two.map(lambda p: p[0] - p[1]), two.map(lambda p: sympy.Max(*p)),
            two.map(lambda p: sympy.Min(*p)), inner.map(lambda e: sympy.floor(e / 2)),
            inner.map(lambda e: sympy.ceiling(e / 3)), inner.map(lambda e: sympy.Mod(e, 3)),
            inner.map(lambda e: e**2), inner.map(lambda e: sympy.floor(e / S)),
        )  # fmt: skip

    return st.recursive(leaves, grow, max_leaves=5)


@settings(max_examples=120)
@given(expressions(), st.integers(1, 9), st.integers(1, 9))
def test_sizes_are_computed_from_the_global_ones(expression, batch, length):
    sizes = {"B": batch, "S": length}
    assert run_size(expression, sizes) == int(evaluate(expression, sizes))


@pytest.mark.parametrize(
    ("number", "value"),
    [(S / 2, 2.5), (1 / S, 0.2), (1 / S**2, 0.04), (1.5 * S, 7.5), (B / S, 0.6)],
)
def test_numbers_that_are_no_sizes_are_divided_truly(number, value):
    """A scale such as 1 / S must not be rounded down as a size would be."""
    emitted = emit([call("c", "full.default", ((), number), (), dtype="float64")], writes=("c",))
    assert emitted.module(3, 5)[0].item() == pytest.approx(value)


def test_names_that_are_alike_stay_apart():
    """In case, in punctuation, of a size, a keyword, a builtin, or of a move's module."""
    names = ("b", "s", "B_1", "a.b", "a_b", "A.B", "lambda", "max", "7up", "tensor")
    steps = [call(f"out {n}", "mul.Scalar", (f"%{n}", i + 2)) for i, n in enumerate(names)]
    steps.append(call("top", "full.default", ((), sympy.Max(B, S)), ()))
    emitted = emit(steps, names, (*(f"out {n}" for n in names), "top"))
    inputs = [torch.full((1,), float(i + 1)) for i in range(len(names))]
    *found, top = emitted.module(3, 5, *inputs)
    assert [x.item() for x in found] == [(i + 1) * (i + 2) for i in range(len(names))]
    assert top.item() == 5


def test_arguments_reads_and_uses_come_in_order():
    use = Use("w__use1", "w", TensorSpec((4, 2), "float32"), WHOLE)
    steps = [use, call("y", "linear.default", ("%x", "%w__use1"), (B, 4))]
    emitted = emit(steps, ("x",), ("y",))
    assert (emitted.sizes, emitted.reads, emitted.uses) == (("B", "S"), ("x",), (use,))
    x, w = torch.randn(3, 2), torch.randn(4, 2)
    assert torch.equal(emitted.module(3, 5, x, lambda: w)[0], x @ w.T)


def test_several_outputs_are_taken_apart():
    split = call("parts", "split.Tensor", ("%x", 2, 0), (2,), (2,))
    emitted = emit([split], ("x",), ("parts", "parts:1"))
    first, second = emitted.module(1, 1, torch.arange(4.0))
    assert (first.tolist(), second.tolist()) == ([0, 1], [2, 3])
    one = call("one", "chunk.default", ("%x", 1), (4,))
    assert emit([one], ("x",), ("one",)).module(1, 1, torch.arange(4.0))[0].shape == (4,)


def test_places_of_the_trace_are_replaced():
    """Device, layout and pinning are those of the executor, dtypes those of the graph."""
    kwargs = (("dtype", Dtype("int64")), ("device", "cuda:3"), ("pin_memory", True))
    outputs = (TensorSpec((S,), "int64"),)
    operator = Operator("r", "aten.arange.default", (S,), kwargs, outputs)
    step = Call(operator, (), (), (WHOLE,), 1)
    (result,) = emit([step], writes=("r",)).module(2, 5)
    assert result.tolist() == [0, 1, 2, 3, 4] and result.device == CPU
    like = Operator(
        "z", "aten.zeros_like.default", (Ref("x"),),
        (("dtype", Dtype("float64")), ("memory_format", "torch.preserve_format")),
        (TensorSpec((B,), "float64"),),
    )  # fmt: skip
    step = Call(like, (WHOLE,), like.outputs, (WHOLE,), 1)
    assert emit([step], ("x",), ("z",)).module(1, 1, torch.ones(2))[0].dtype == torch.float64


def test_what_cannot_be_emitted_is_refused():
    with pytest.raises(UnsupportedError, match=r"no_such_kind.*does not have"):
        emit([call("c", "no_such_kind.default", ("%x",))], ("x",), ("c",))


def test_the_code_of_a_unit_reads_well():
    use = Use("w__use1", "w", TensorSpec((4, 2), "float32"), WHOLE)
    steps = [use, call("y", "linear.default", ("%x", "%w__use1"), (B, 4))]
    code = emit(steps, ("x",), ("y",)).module.code
    assert "def forward(self, b, s, x, w__use1):" in code
    assert "w__use1_copy = _operator_call(w__use1)" in code
    assert "y = torch.ops.aten.linear.default(x, w__use1_copy);  x = w__use1_copy = None" in code
