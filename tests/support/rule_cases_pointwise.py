"""Random one-operator cases of the pointwise kinds."""

from hypothesis import strategies as st

from shardwise.ir.argument import Dtype, Ref
from shardwise.ir.tensor import TensorSpec
from tests.support.rule_runner import B, Case, Operand, S

SHAPES = (
    (B, S, 8), (B, S, 4, 6), (B * S, 12), (S, 8), (B, 8), (8,), (B, 4, S, 8), (4 * B, 6), (B, S),
    (12, 8), (), (3 * S, 2), (5,),
)  # fmt: skip


@st.composite
def broadcastable(draw, shape):
    """A shape that broadcasts to `shape`: leading dims dropped, others replaced by 1."""
    kept = draw(st.integers(0, len(shape)))
    return tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape[len(shape) - kept :])


def several(kind, operands, args, *, out="float64", kwargs=()):
    """Operands (name -> kind of values) of one shape, or of shapes that broadcast to it.

    The first one is whole for kinds whose result has its shape alone.
    """

    @st.composite
    def make(draw):
        shape = draw(st.sampled_from(SHAPES))
        names = list(operands)
        full = draw(st.sampled_from(names))
        found = {}
        for name in names:
            mine = shape if name == full or draw(st.booleans()) else draw(broadcastable(shape))
            if operands[name].startswith("scalar "):
                mine = ()
            elif kind in _FIRST_SHAPE and name == names[0]:
                mine = shape
            found[name] = Operand(
                mine,
                operands[name].removeprefix("scalar "),
                gradient=draw(st.integers(0, 3)) > 0,
                parameter=operands[name] == "normal" and name != names[0] and _fixed(mine)
                and draw(st.booleans()),
            )  # fmt: skip
        if operands[full].startswith("scalar "):
            found[names[0]] = Operand(shape, operands[names[0]])
        return Case(kind, found, args, (TensorSpec(shape, out),), kwargs)

    return make()


_FIRST_SHAPE = {"aten.type_as.default"}


def _fixed(shape):
    return all(isinstance(n, int) for n in shape)


a, b, c = Ref("a"), Ref("b"), Ref("c")
N, P = "normal", "positive"
F64 = Dtype("float64")


def _unary(kind, values=N, more=(), out="float64", kwargs=()):
    return several(kind, {"a": values}, (a, *more), out=out, kwargs=kwargs)


def _binary(kind, first=N, second=N, out="float64", kwargs=()):
    return several(kind, {"a": first, "b": second}, (a, b), out=out, kwargs=kwargs)


@st.composite
def of_other_shape(draw, kind, *more):
    """A tensor made in the likeness of another one."""
    shape = draw(st.sampled_from([(B, S), (8,), (), (S, 4)]))
    operand = Operand(draw(st.sampled_from(SHAPES)), gradient=draw(st.booleans()))
    return Case(kind, {"a": operand}, (a, shape, *more), (TensorSpec(shape, "float64"),))


@st.composite
def masked(draw):
    """Dropout that returns its mask; with probability 0 it is the same on all ranks."""
    shape = draw(st.sampled_from(SHAPES))
    operand = Operand(shape, gradient=draw(st.booleans()))
    specs = (TensorSpec(shape, "float64"), TensorSpec(shape, "bool"))
    return Case("aten.native_dropout.default", {"a": operand}, (a, 0.0, True), specs)


@st.composite
def summed(draw, kind):
    """Losses of element and target, in every reduction."""
    shape = draw(st.sampled_from(SHAPES))
    reduction = draw(st.sampled_from([2, 2, 1, 0]))
    trains = kind != "aten.soft_margin_loss.default" and draw(st.booleans())
    operands = {"a": Operand(shape), "b": Operand(shape, gradient=trains)}
    out = TensorSpec(shape if reduction == 0 else (), "float64")
    return Case(kind, operands, (a, b, reduction), (out,))


@st.composite
def binary_entropy(draw, kind):
    """Probabilities or logits, with weights that may be broadcast."""
    shape = draw(st.sampled_from([(B, S, 8), (B, 8), (4, B)]))
    reduction = draw(st.sampled_from([2, 2, 1, 0]))
    logits = kind.endswith("logits.default")
    operands = {
        "a": Operand(shape, N if logits else "unit"),
        "b": Operand(shape, "unit", gradient=False),
    }
    weight = draw(st.sampled_from([None, shape, shape[-1:]]))
    if weight is not None:
        operands["c"] = Operand(weight, "unit", gradient=False)
    args = (a, b, None if weight is None else c, *((None,) if logits else ()), reduction)
    out = TensorSpec(shape if reduction == 0 else (), "float64")
    return Case(kind, operands, args, (out,))


CASES = {
    **{
        f"aten.{name}.default": _unary(f"aten.{name}.default")
        for name in [
            "neg",
            "abs",
            "exp",
            "sigmoid",
            "tanh",
            "relu",
            "silu",
            "gelu",
            "sin",
            "cos",
            "erf",
            "softplus",
            "mish",
            "hardtanh",
            "leaky_relu",
            "elu",
            "floor",
            "ceil",
            "round",
            "sign",
            "square",
            "clone",
            "detach",
            "alias",
            "contiguous",
            "log_sigmoid",
            "hardswish",
            "selu",
            "relu6",
            "expm1",
            "zeros_like",
            "ones_like",
        ]
    },
    **{
        f"aten.{name}.default": _unary(f"aten.{name}.default", P)
        for name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p")
    },
    **{
        f"aten.{name}.default": _unary(f"aten.{name}.default", "bool", out="bool")
        for name in ("logical_not", "bitwise_not")
    },
    **{
        f"aten.{name}.default": _unary(f"aten.{name}.default", out="bool")
        for name in ("isnan", "isinf")
    },
    **{
        f"aten.{name}.Scalar": _unary(f"aten.{name}.Scalar", "ids:4", (2,), out="bool")
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{
        f"aten.{name}.Scalar": _unary(f"aten.{name}.Scalar", more=(1.5,))
        for name in ("add", "sub", "mul", "div", "remainder", "rsub", "fill")
    },
    **{
        f"aten.{name}.Tensor": _binary(f"aten.{name}.Tensor", second=P)
        for name in ("add", "sub", "mul", "div")
    },
    **{
        f"aten.{name}.Tensor": _binary(f"aten.{name}.Tensor", "ids:3", "ids:3", "bool")
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{
        f"aten.{name}": _binary(f"aten.{name}", "bool", "bool", "bool")
        for name in [
            "logical_and.default",
            "logical_or.default",
            "logical_xor.default",
            "bitwise_and.Tensor",
            "bitwise_or.Tensor",
            "bitwise_xor.Tensor",
            "__and__.Tensor",
            "__or__.Tensor",
            "__xor__.Tensor",
        ]
    },
    "aten.add.Tensor": _binary("aten.add.Tensor", kwargs=(("alpha", 2),)),
    "aten.remainder.Tensor": _binary("aten.remainder.Tensor", P, P),
    "aten.floor_divide.default": several(
        "aten.floor_divide.default", {"a": "ids:9", "b": "counts"}, (a, b), out="int64"
    ),
    "aten.maximum.default": _binary("aten.maximum.default"),
    "aten.max.other": _binary("aten.max.other"),
    "aten.min.other": _binary("aten.min.other"),
    "aten.minimum.default": _binary("aten.minimum.default"),
    "aten.clamp.default": _unary("aten.clamp.default", more=(-0.5, 0.5)),
    "aten.clamp_min.default": _unary("aten.clamp_min.default", more=(-0.5,)),
    "aten.clamp_max.default": _unary("aten.clamp_max.default", more=(0.5,)),
    "aten.clamp.Tensor": several("aten.clamp.Tensor", {"a": N, "b": N}, (a, None, b)),
    "aten.native_dropout.default": masked(),
    "aten.dropout.default": _unary("aten.dropout.default", more=(0.5, False)),
    "aten.pow.Tensor_Scalar": _unary("aten.pow.Tensor_Scalar", more=(3,)),
    "aten.pow.Tensor_Tensor": _binary("aten.pow.Tensor_Tensor", P, N),
    "aten.pow.Scalar": several("aten.pow.Scalar", {"a": N}, (2.0, a)),
    "aten.where.self": several("aten.where.self", {"c": "bool", "a": N, "b": N}, (c, a, b)),
    "aten.where.ScalarSelf": several("aten.where.ScalarSelf", {"c": "bool", "a": N}, (c, 1.0, a)),
    "aten.where.ScalarOther": several("aten.where.ScalarOther", {"c": "bool", "a": N}, (c, a, 1.0)),
    "aten.where.Scalar": several("aten.where.Scalar", {"c": "bool"}, (c, 1.0, 2.0), out="float32"),
    "aten.masked_fill.Scalar": several(
        "aten.masked_fill.Scalar", {"a": N, "c": "bool"}, (a, c, -5.0)
    ),
    "aten.masked_fill.Tensor": several(
        "aten.masked_fill.Tensor", {"a": N, "c": "bool", "b": "scalar normal"}, (a, c, b)
    ),
    "aten.to.dtype": _unary("aten.to.dtype", "ids:5", (F64,)),
    "aten.to.dtype_layout": _unary("aten.to.dtype_layout", "bool", kwargs=(("dtype", F64),)),
    "aten.to.device": _unary("aten.to.device", "ids:5", ("cpu", F64)),
    "aten._to_copy.default": _unary("aten._to_copy.default", N, kwargs=(("dtype", F64),)),
    "aten.type_as.default": _binary("aten.type_as.default", "ids:5", N),
    "aten.addcmul.default": several(
        "aten.addcmul.default", {"a": N, "b": N, "c": N}, (a, b, c), kwargs=(("value", 0.5),)
    ),
    "aten.addcdiv.default": several("aten.addcdiv.default", {"a": N, "b": N, "c": P}, (a, b, c)),
    "aten.lerp.Scalar": several("aten.lerp.Scalar", {"a": N, "b": N}, (a, b, 0.25)),
    "aten.full_like.default": _unary("aten.full_like.default", more=(1.5,)),
    "aten.empty_like.default": _unary("aten.empty_like.default"),
    **{
        f"aten.{name}.default": of_other_shape(f"aten.{name}.default", *more)
        for name, *more in (("new_zeros",), ("new_ones",), ("new_full", 2.5), ("new_empty",))
    },
    **{
        f"aten.{name}.default": summed(f"aten.{name}.default")
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss")
    },
    **{
        f"aten.{name}.default": binary_entropy(f"aten.{name}.default")
        for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits")
    },
}
"""Kind -> strategy of its cases."""
