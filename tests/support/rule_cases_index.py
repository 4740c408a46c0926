"""Random one-operator cases of look-ups, writes at an index, sorting, repetition and einsum."""

from hypothesis import strategies as st

from shardwise.ir.argument import Ref
from shardwise.ir.tensor import TensorSpec
from tests.support.rule_runner import B, Case, Operand, S

a, b, c, d = Ref("a"), Ref("b"), Ref("c"), Ref("d")
SHAPES = ((B, S, 8), (4, B, S), (B * S, 8), (B, 4, S, 6))


def _spec(*shape, dtype="float64"):
    return TensorSpec(shape, dtype)


def _signed(draw, dim, rank):
    return dim - rank if draw(st.booleans()) else dim


def _smallest(length):
    """An index below every size that a dim can have."""
    return length if isinstance(length, int) else 2


_INDICES = (
    # x, indexed dims, shapes of the indices, shape of the result
    ((6, 8), (0,), [(B, S)], (B, S, 8)),
    ((6, 8), (0,), [(B * S,)], (B * S, 8)),
    ((6, 4, 8), (0,), [(2 * B * S,)], (2 * B * S, 4, 8)),
    ((B, S, 6, 8), (2,), [(1,)], (B, S, 1, 8)),
    ((B, S, 6, 8), (1,), [(3,)], (B, 3, 6, 8)),
    ((B, S), (0, 1), [(B, 1, 1, 1), (1, 1, S, 1)], (B, 1, S, 1)),
    ((B, S, 8), (0, 1), [(B,), (B,)], (B, 8)),
    ((B, 5, S, 8), (1, 2), [(4, 1), (S,)], (B, 4, S, 8)),
    ((B, 5, S, 8), (1, 3), [(4,), (4,)], (4, B, S)),
    ((5, B, 6, 8), (0, 2), [(S, 1), (3,)], (S, 3, B, 8)),
    ((B, S, 8), (1,), [(B, 3)], (B, B, 3, 8)),
)


@st.composite
def index(draw):
    shape, dims, indices, out = draw(st.sampled_from(_INDICES))
    stored = all(isinstance(n, int) for n in shape) and draw(st.booleans())
    operands = {"a": Operand(shape, parameter=stored)}
    places: list = [None] * (dims[-1] + 1)
    for name, dim, rows in zip("bcd", dims, indices, strict=False):
        operands[name] = Operand(rows, f"ids:{_smallest(shape[dim])}")
        places[dim] = Ref(name)
    return Case("aten.index.Tensor", operands, (a, tuple(places)), (_spec(*out),))


@st.composite
def index_select(draw):
    shape = draw(st.sampled_from(SHAPES))
    dim = draw(st.integers(0, len(shape) - 1))
    rows = draw(st.sampled_from([B, 4, B * S]))
    operands = {"a": Operand(shape), "b": Operand((rows,), f"ids:{_smallest(shape[dim])}")}
    args = (a, _signed(draw, dim, len(shape)), b)
    out = (*shape[:dim], rows, *shape[dim + 1 :])
    return Case("aten.index_select.default", operands, args, (_spec(*out),))


_GATHERED = (
    # x, dim, shape of the index
    ((B * S, 8), 1, (B * S, 2)),
    ((1, 8), 1, (1, S)),
    ((B, S, 8), 2, (B, S, 4)),
    ((B, S, 8), 1, (B, 4, 8)),
    ((B, 4, S), 0, (4 * B, 4, S)),
    ((B, S, 8), 1, (B, S, 4)),
    ((8,), 0, (B,)),
)


@st.composite
def gather(draw):
    shape, dim, rows = draw(st.sampled_from(_GATHERED))
    operands = {"a": Operand(shape), "b": Operand(rows, f"ids:{_smallest(shape[dim])}")}
    args = (a, _signed(draw, dim, len(shape)), b)
    return Case("aten.gather.default", operands, args, (_spec(*rows),))


@st.composite
def scatter(draw, kind):
    """The index may be smaller than what is written to on any dim."""
    shape, dim, rows = draw(
        st.sampled_from([
            ((B * S, 8), 1, (B * S, 2)), ((B, S, 8), 2, (B, S, 4)), ((B, S, 8), 1, (B, 2, 8)),
            ((B, S, 8), 2, (B, S, 8)), ((B, 6, 4), 2, (B, 4, 4)), ((8, B), 0, (2, B)),
        ])
    )  # fmt: skip
    operands = {"a": Operand(shape), "b": Operand(rows, f"ids:{_smallest(shape[dim])}")}
    written: object = 0.5
    if kind != "aten.scatter.value":
        operands["c"], written = Operand(rows), c
    args = (a, _signed(draw, dim, len(shape)), b, written)
    return Case(kind, operands, args, (_spec(*shape),))


@st.composite
def slice_scatter(draw):
    shape = draw(st.sampled_from(SHAPES))
    dim = draw(st.integers(0, len(shape) - 1))
    length = shape[dim]
    start, stop = (1, length) if draw(st.booleans()) else (0, length)
    operands = {
        "a": Operand(shape),
        "b": Operand((*shape[:dim], length - start, *shape[dim + 1 :])),
    }
    args = (a, b, _signed(draw, dim, len(shape)), start, stop)
    return Case("aten.slice_scatter.default", operands, args, (_spec(*shape),))


@st.composite
def select_scatter(draw):
    shape = draw(st.sampled_from(SHAPES))
    dim = draw(st.integers(0, len(shape) - 1))
    operands = {"a": Operand(shape), "b": Operand((*shape[:dim], *shape[dim + 1 :]))}
    args = (a, b, _signed(draw, dim, len(shape)), draw(st.integers(-1, 1)))
    return Case("aten.select_scatter.default", operands, args, (_spec(*shape),))


@st.composite
def ordering(draw, kind):
    """The largest, or all in order, with their places."""
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (B, 6, S)]))
    dim = draw(st.integers(0, len(shape) - 1))
    place = _signed(draw, dim, len(shape))
    count = shape[dim]
    if kind == "aten.topk.default":
        count = draw(st.sampled_from([1, 2]))
        args = (a, count, place)
        if dim == len(shape) - 1 and draw(st.booleans()):
            args = (a, count)
    else:
        args = (a, place, draw(st.booleans()))
    out = (*shape[:dim], count, *shape[dim + 1 :])
    specs = (_spec(*out), _spec(*out, dtype="int64"))
    outputs = specs[1:] if kind == "aten.argsort.default" else specs
    return Case(kind, {"a": Operand(shape)}, args, outputs)


@st.composite
def extreme(draw, kind):
    """Of one dim: the largest or smallest, or its place, and other reductions that take one dim."""
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (B, 6, S)]))
    dim = draw(st.integers(0, len(shape) - 1))
    kept = draw(st.booleans())
    place = _signed(draw, dim, len(shape))
    args = (a, (place,) if kind == "aten.logsumexp.default" else place, kept)
    out = (*shape[:dim], *((1,) if kept else ()), *shape[dim + 1 :])
    if kind in ("aten.all.dim", "aten.any.dim"):
        return Case(kind, {"a": Operand(shape, "bool")}, args, (_spec(*out, dtype="bool"),))
    if kind in ("aten.logsumexp.default", "aten.prod.dim_int"):
        return Case(kind, {"a": Operand(shape)}, args, (_spec(*out),))
    specs = (_spec(*out), _spec(*out, dtype="int64"))
    if "arg" in kind:
        if draw(st.integers(0, 3)) == 0:
            return Case(kind, {"a": Operand(shape)}, (a,), (_spec(dtype="int64"),))
        return Case(kind, {"a": Operand(shape)}, args, specs[1:])
    return Case(kind, {"a": Operand(shape)}, args, specs)


@st.composite
def diff(draw):
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (B, 6, S)]))
    dim = draw(st.integers(0, len(shape) - 1))
    operands = {"a": Operand(shape)}
    out = (*shape[:dim], shape[dim] - 1, *shape[dim + 1 :])
    args = (a, 1, _signed(draw, dim, len(shape)))
    if draw(st.booleans()):
        operands["b"] = Operand((*shape[:dim], 1, *shape[dim + 1 :]))
        args, out = (*args, b), shape
    return Case("aten.diff.default", operands, args, (_spec(*out),))


@st.composite
def repeat(draw):
    shape, times = draw(
        st.sampled_from([
            ((1, S), (B, 1)), ((B, S, 4), (1, 2, 1)), ((8,), (B, 3)), ((B, 8), (2, 1, 3)),
            ((4, 1, S), (B, 1, 1)), ((S, 4), (B, 1)), ((B, S), (2, 2)),
        ])
    )  # fmt: skip
    full = (*(1,) * (len(times) - len(shape)), *shape)
    out = tuple(n * m for n, m in zip(full, times, strict=True))
    return Case("aten.repeat.default", {"a": Operand(shape)}, (a, times), (_spec(*out),))


@st.composite
def repeat_interleave(draw):
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (8,), (B,)]))
    times = draw(st.integers(1, 3))
    if len(shape) == 1 and draw(st.booleans()):
        args, dim = (a, times), 0
    else:
        dim = draw(st.integers(0, len(shape) - 1))
        args = (a, times, _signed(draw, dim, len(shape)))
    out = (*shape[:dim], times * shape[dim], *shape[dim + 1 :])
    stated = draw(st.booleans())
    kwargs = (("output_size", out[dim]),) if stated else ()
    kind = "aten.repeat_interleave.self_int"
    return Case(kind, {"a": Operand(shape)}, args, (_spec(*out),), kwargs)


@st.composite
def roll(draw):
    shape = draw(st.sampled_from(SHAPES))
    dims = draw(st.lists(st.integers(0, len(shape) - 1), max_size=2, unique=True))
    shifts = tuple(draw(st.integers(-2, 2)) for _ in dims) or (1,)
    signed = tuple(_signed(draw, dim, len(shape)) for dim in dims)
    args = (a, shifts, signed) if dims or draw(st.booleans()) else (a, shifts)
    return Case("aten.roll.default", {"a": Operand(shape)}, args, (_spec(*shape),))


@st.composite
def einsum(draw):
    sizes = {"b": B, "s": S, "t": S, "h": 4, "n": 8, "k": 6}
    equation = draw(
        st.sampled_from([
            "bhsn,bhtn->bhst", "bhst,bhtn->bhsn", "bsn,nk->bsk", "bsn,bsn->bs", "bsn,kn->kbs",
            "bs,bn->bsn", "bsn->b", "bsn,bn->s", "bsn,sbn->", "hn , bs -> bshn", "bsn,nk",
            "...n,nk->...k", "bss->bs", "nb,bs,sk->nk",
        ])
    )  # fmt: skip
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        right = "bks"
    parts = left.split(",")
    operands = {
        name: Operand(tuple(sizes[one] for one in part.replace("...", "bs")))
        for name, part in zip("abc", parts, strict=False)
    }
    out = tuple(sizes[one] for one in right.replace("...", "bs"))
    args = (equation, tuple(map(Ref, operands)))
    return Case("aten.einsum.default", operands, args, (_spec(*out),))


@st.composite
def baddbmm(draw):
    batch = draw(st.sampled_from([B, 4 * B]))
    m, k, n = (draw(st.sampled_from([S, 8, 6])) for _ in range(3))
    bias = draw(st.sampled_from([(batch, m, n), (batch, 1, n), (1, m, n), (n,), (1, 1, 1)]))
    operands = {
        "a": Operand(bias),
        "b": Operand((batch, m, k)),
        "c": Operand((batch, k, n)),
    }
    kwargs = draw(st.sampled_from([(), (("beta", 0.5), ("alpha", 2.0))]))
    return Case("aten.baddbmm.default", operands, (a, b, c), (_spec(batch, m, n),), kwargs)


CASES = {
    "aten.index.Tensor": index(),
    "aten.index_select.default": index_select(),
    "aten.gather.default": gather(),
    **{
        kind: scatter(kind)
        for kind in ("aten.scatter.value", "aten.scatter.src", "aten.scatter_add.default")
    },
    "aten.slice_scatter.default": slice_scatter(),
    "aten.select_scatter.default": select_scatter(),
    **{
        kind: ordering(kind)
        for kind in ("aten.topk.default", "aten.sort.default", "aten.argsort.default")
    },
    **{
        kind: extreme(kind)
        for kind in (
            "aten.max.dim",
            "aten.min.dim",
            "aten.argmax.default",
            "aten.argmin.default",
            "aten.logsumexp.default",
            "aten.prod.dim_int",
            "aten.all.dim",
            "aten.any.dim",
        )
    },
    "aten.diff.default": diff(),
    "aten.repeat.default": repeat(),
    "aten.repeat_interleave.self_int": repeat_interleave(),
    "aten.roll.default": roll(),
    "aten.einsum.default": einsum(),
    "aten.baddbmm.default": baddbmm(),
}
"""Kind -> strategy of its cases."""
