"""Random one-operator cases of products, reductions, normalisations, lookups, attention, losses."""

from hypothesis import strategies as st

from shardwise.ir.argument import Ref
from shardwise.ir.tensor import TensorSpec
from tests.support.rule_runner import B, Case, Operand, S

a, b, c, d = Ref("a"), Ref("b"), Ref("c"), Ref("d")


def _spec(*shape, dtype="float64"):
    return TensorSpec(shape, dtype)


@st.composite
def linear(draw):
    """Widths that 2 and 4 divide, and some that they do not; weights stored or computed."""
    rows = draw(st.sampled_from([(B, S), (B * S,), (B,), (4, B)]))
    k, n = draw(st.sampled_from([8, 12, 6, 5])), draw(st.sampled_from([8, 4, 6, 5]))
    stored = draw(st.integers(0, 3)) > 0
    operands = {"a": Operand((*rows, k)), "b": Operand((n, k), parameter=stored)}
    if draw(st.booleans()):
        operands["c"] = Operand((n,), parameter=stored, gradient=draw(st.booleans()))
    args = tuple(Ref(name) for name in operands)
    return Case("aten.linear.default", operands, args, (_spec(*rows, n),))


@st.composite
def addmm(draw):
    rows = draw(st.sampled_from([B * S, B, 4 * B]))
    k, n = draw(st.sampled_from([8, 12, 6, 5])), draw(st.sampled_from([8, 4, 6, 5]))
    stored = draw(st.integers(0, 3)) > 0
    bias = draw(st.sampled_from([(n,), (n,), (1, n), (rows, n), (rows, 1)]))
    operands = {
        "a": Operand(bias, parameter=stored and bias == (n,)),
        "b": Operand((rows, k)),
        "c": Operand((k, n), parameter=stored),
    }
    kwargs = draw(st.sampled_from([(), (("beta", 0.5), ("alpha", 2.0))]))
    return Case("aten.addmm.default", operands, (a, b, c), (_spec(rows, n),), kwargs)


@st.composite
def matmul(draw):
    shapes = [
        ((B, S, 8), (8, 4)), ((B, S, 8), (8, 6)), ((B, 4, S, 8), (B, 4, 8, S)),
        ((B, 4, S, S), (B, 4, S, 6)), ((B, 1, S, 8), (4, 8, S)), ((4, 8), (B, 8, S)),
        ((B, 4, S, 8), (8, 4)), ((B * S, 8), (8, 12)), ((S, 8), (8,)), ((8,), (8, 4)), ((8,), (8,)),
        ((1, 8, 1), (B, 1, S)), ((B, 8, 1), (1, 1, S)),
    ]  # fmt: skip
    left, right = draw(st.sampled_from(shapes))
    stored = all(isinstance(n, int) for n in right) and draw(st.booleans())
    out_rows = left[:-1]
    if len(right) > 2 or len(left) > 2:
        batch = _broadcast(left[:-2], right[:-2])
        out_rows = (*batch, *left[-2:-1])
    out = (*out_rows, *(right[-1:] if len(right) > 1 else ()))
    operands = {"a": Operand(left), "b": Operand(right, parameter=stored)}
    return Case("aten.matmul.default", operands, (a, b), (_spec(*out),))


def _broadcast(left, right):
    count = max(len(left), len(right))
    left, right = ((1,) * (count - len(x)) + tuple(x) for x in (left, right))
    return tuple(m if n == 1 else n for n, m in zip(left, right, strict=True))


@st.composite
def mm(draw):
    rows = draw(st.sampled_from([B * S, B, 8]))
    k, n = draw(st.sampled_from([8, 4 * S, 5])), draw(st.sampled_from([8, 6, S]))
    stored = isinstance(k, int) and isinstance(n, int) and draw(st.booleans())
    operands = {"a": Operand((rows, k)), "b": Operand((k, n), parameter=stored)}
    return Case("aten.mm.default", operands, (a, b), (_spec(rows, n),))


@st.composite
def bmm(draw):
    batch = draw(st.sampled_from([B, 4 * B, 8]))
    m, k, n = (draw(st.sampled_from([S, 8, 6])) for _ in range(3))
    operands = {"a": Operand((batch, m, k)), "b": Operand((batch, k, n))}
    return Case("aten.bmm.default", operands, (a, b), (_spec(batch, m, n),))


@st.composite
def reduction(draw, kind):
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (4, B, 6, S), (8,), (B, 1, S)]))
    rank = len(shape)
    dims = draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True).map(tuple))
    signed = tuple(x - rank if draw(st.booleans()) else x for x in dims)
    kept = draw(st.booleans())
    operand = Operand(shape, "bool" if kind in _LOGICAL else "normal")
    dtype = "bool" if kind in _LOGICAL else "float64"
    if kind in ("aten.sum.default", "aten.mean.default", *_LOGICAL):
        return Case(kind, {"a": operand}, (a,), (_spec(dtype=dtype),))
    if draw(st.integers(0, 4)) == 0:
        everything = {"aten.amax.default": (), "aten.amin.default": ()}.get(kind)
        signed, dims = everything, tuple(range(rank))  # type: ignore[assignment]
    out = tuple(1 if i in dims else n for i, n in enumerate(shape) if kept or i not in dims)
    args, kwargs = (a, signed, kept), ()
    if kind == "aten.var.correction":
        args, kwargs = (a, signed), (("correction", 0), ("keepdim", kept))
    if kind == "aten.linalg_vector_norm.default":
        args = (a, draw(st.sampled_from([2, 1, 3.0])), signed, kept)
    return Case(kind, {"a": operand}, args, (_spec(*out),), kwargs)


_LOGICAL = ("aten.all.default", "aten.any.default")


@st.composite
def count(draw):
    """A sum of booleans: the weight of the loss."""
    operand = Operand(draw(st.sampled_from([(B, S), (B * S,)])), "bool")
    return Case("aten.sum.default", {"a": operand}, (a,), (_spec(dtype="int64"),))


@st.composite
def normalisation(draw, kind):
    shape, last = draw(
        st.sampled_from([((B, S, 8), 1), ((B * S, 8), 1), ((B, 4, S, 6), 1), ((B, 4, 6), 2)])
    )
    wide = shape[len(shape) - last :]
    operands = {"a": Operand(shape)}
    if draw(st.booleans()):
        operands["b"] = Operand(wide, parameter=draw(st.booleans()))
        if kind == "aten.layer_norm.default":
            operands["c"] = Operand(wide, parameter=draw(st.booleans()))
    more = tuple(Ref(name) for name in list(operands)[1:])
    return Case(kind, operands, (a, wide, *more), (_spec(*shape),))


@st.composite
def embedding(draw):
    """Vocabularies that the axis divides or not, ids of the batch or positions, a padding row."""
    rows, width = draw(st.sampled_from([8, 12, 6, 5])), 4
    shape = draw(st.sampled_from([(B, S), (S,), (1, S), (B * S,), (B, 4)]))
    more = draw(st.sampled_from([(), (), (1,), (rows - 1,), (-1, True)]))
    operands = {
        "a": Operand((rows, width), parameter=draw(st.integers(0, 3)) > 0),
        "b": Operand(shape, f"ids:{rows}"),
    }
    return Case("aten.embedding.default", operands, (a, b, *more), (_spec(*shape, width),))


@st.composite
def attention(draw):
    """Query heads and key heads in every ratio, masks of every rank, also trained ones."""
    heads, kv = draw(
        st.sampled_from([(4, 4), (4, 2), (4, 1), (8, 2), (6, 3), (3, 3), (3, 1), (12, 3), (8, 8)])
    )
    width = draw(st.sampled_from([8, 5]))
    rows, keys = draw(st.sampled_from([(S, S), (S, S), (S, 6), (4, S)]))
    operands = {
        "a": Operand((B, heads, rows, width)),
        "b": Operand((B, kv, keys, width)),
        "c": Operand((B, kv, keys, width)),
    }
    mask, causal = None, draw(st.booleans())
    if draw(st.booleans()):
        shape = draw(
            st.sampled_from([
                (rows, keys), (1, keys), (B, 1, rows, keys), (1, 1, rows, keys),
                (B, heads, rows, keys), (1, heads, rows, keys), (B, 1, 1, keys), (1, rows, keys),
                (heads, rows, keys),
            ])
        )  # fmt: skip
        operands["d"] = Operand(shape, "normal", gradient=draw(st.booleans()))
        mask, causal = d, False
    kwargs = (("enable_gqa", True),) if kv != heads else draw(
        st.sampled_from([(), (("scale", 0.3),)])
    )  # fmt: skip
    args = (a, b, c, mask, 0.0, causal)
    out = _spec(B, heads, rows, width)
    return Case("aten.scaled_dot_product_attention.default", operands, args, (out,), kwargs)


@st.composite
def cross_entropy(draw):
    """Rows sharded or classes, soft targets, smoothing, other reductions, more dims."""
    classes = draw(st.sampled_from([8, 12, 5]))
    shape = draw(st.sampled_from([(B * S, classes), (B, classes), (B, classes, S), (classes,)]))
    reduction = draw(st.sampled_from([2, 2, 2, 1, 0]))
    rows = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    soft = draw(st.integers(0, 4)) == 0
    operands = {
        "a": Operand(shape),
        "b": Operand(shape, "positive", gradient=False) if soft
        else Operand(rows, f"ids:{classes}" if reduction == 1 else f"targets:{classes}"),
    }  # fmt: skip
    weight = None
    if draw(st.integers(0, 4)) == 0:
        operands["c"], weight = Operand((classes,), "positive", gradient=False), c
    smoothing = draw(st.sampled_from([0.0, 0.0, 0.1]))
    out = rows if reduction == 0 else ()
    args = (a, b, weight, reduction, -100, smoothing)
    return Case("aten.cross_entropy_loss.default", operands, args, (_spec(*out),))


@st.composite
def likelihood(draw, kind):
    """The loss of log-probabilities."""
    classes = draw(st.sampled_from([8, 5]))
    shapes = [(B * S, classes), (B, classes)]
    if kind == "aten.nll_loss_nd.default":
        shapes.append((B, classes, S, 2))
    shape = draw(st.sampled_from(shapes))
    reduction = draw(st.sampled_from([2, 2, 1, 0]))
    rows = (*shape[:1], *shape[2:])
    operands = {
        "a": Operand(shape),
        "b": Operand(rows, f"ids:{classes}" if reduction == 1 else f"targets:{classes}"),
    }
    args = (a, b, None, reduction, -100)
    return Case(kind, operands, args, (_spec(*(rows if reduction == 0 else ())),))


CASES = {
    "aten.linear.default": linear(),
    "aten.addmm.default": addmm(),
    "aten.matmul.default": matmul(),
    "aten.mm.default": mm(),
    "aten.bmm.default": bmm(),
    **{
        kind: reduction(kind)
        for kind in [
            "aten.sum.dim_IntList",
            "aten.mean.dim",
            "aten.mean.default",
            "aten.amax.default",
            "aten.amin.default",
            "aten.var.correction",
            "aten.all.default",
            "aten.any.default",
            "aten.linalg_vector_norm.default",
        ]
    },
    "aten.sum.default": reduction("aten.sum.default") | count(),
    "aten.layer_norm.default": normalisation("aten.layer_norm.default"),
    "aten.rms_norm.default": normalisation("aten.rms_norm.default"),
    "aten.embedding.default": embedding(),
    "aten.scaled_dot_product_attention.default": attention(),
    "aten.cross_entropy_loss.default": cross_entropy(),
    "aten.nll_loss.default": likelihood("aten.nll_loss.default"),
    "aten.nll_loss_nd.default": likelihood("aten.nll_loss_nd.default"),
}
"""Kind -> strategy of its cases."""
