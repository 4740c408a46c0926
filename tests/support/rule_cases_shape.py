"""Random one-operator cases of views, cuts and joins."""

import math

import sympy
from hypothesis import strategies as st

from shardwise.ir.argument import Ref
from shardwise.ir.tensor import TensorSpec
from tests.support.rule_runner import B, Case, Operand, S

a, b, c = Ref("a"), Ref("b"), Ref("c")
ATOMS = (
    (B, S, 4, 6), (B, S, 2, 2, 3), (B, 4, S, 2), (4, B, 2), (B, S), (8, 3), (2, B, S, 2), (S, 4, 2),
    (B, 2, S, 4),
)  # fmt: skip


def _product(sizes):
    total = sympy.Integer(1)
    for n in sizes:
        total = total * n
    return int(total) if total.is_Integer else total


@st.composite
def grouping(draw, atoms):
    """Neighbouring atoms multiplied together in some places, dims of 1 put in here and there."""
    shape, run = [], [atoms[0]]
    for atom in atoms[1:]:
        if draw(st.booleans()):
            run.append(atom)
        else:
            shape.append(_product(run))
            run = [atom]
    shape.append(_product(run))
    if draw(st.integers(0, 3)) == 0:
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def _spec(*shape):
    return TensorSpec(shape, "float64")


def _operand(draw, shape):
    return Operand(tuple(shape), gradient=draw(st.integers(0, 4)) > 0)


def _signed(draw, dim, rank):
    return dim - rank if draw(st.booleans()) else dim


def _reshaping(kind):
    @st.composite
    def make(draw):
        atoms = draw(st.sampled_from(ATOMS))
        before, after = draw(grouping(atoms)), draw(grouping(atoms))
        return Case(kind, {"a": _operand(draw, before)}, (a, after), (_spec(*after),))

    return make()


@st.composite
def flatten(draw):
    shape = draw(st.sampled_from([(B, S, 4, 6), (B, 4, S, 2), (2, B, 3)]))
    start = draw(st.integers(0, len(shape) - 1))
    stop = draw(st.integers(start, len(shape) - 1))
    out = (*shape[:start], _product(shape[start : stop + 1]), *shape[stop + 1 :])
    args = (a, start, _signed(draw, stop, len(shape)))
    return Case("aten.flatten.using_ints", {"a": _operand(draw, shape)}, args, (_spec(*out),))


@st.composite
def unflatten(draw):
    shape, dim, sizes = draw(
        st.sampled_from([
            ((B * S, 8), 0, (B, S)), ((B, S, 8), 2, (4, 2)), ((B, S, 12), -1, (3, 4)),
            ((4 * B, 6), 0, (4, B)),
        ])
    )  # fmt: skip
    place = dim % len(shape)
    out = (*shape[:place], *sizes, *shape[place + 1 :])
    args = (a, dim, sizes)
    return Case("aten.unflatten.int", {"a": _operand(draw, shape)}, args, (_spec(*out),))


@st.composite
def unsqueeze(draw):
    shape = draw(st.sampled_from([(B, S, 8), (B * S, 4), (8,)]))
    dim = draw(st.integers(0, len(shape)))
    out = (*shape[:dim], 1, *shape[dim:])
    args = (a, _signed(draw, dim, len(shape) + 1))
    return Case("aten.unsqueeze.default", {"a": _operand(draw, shape)}, args, (_spec(*out),))


def _squeezing(kind):
    """Only dims that are 1 in the graph vanish; a rank's part of another dim may be 1 too."""

    @st.composite
    def make(draw):
        shape = draw(st.sampled_from([(B, 1, S, 8), (1, 4 * B, 1, 2), (2, 1, 4), (1, 4)]))
        ones = [i for i, n in enumerate(shape) if n == 1]
        if kind == "aten.squeeze.default":
            gone, args = ones, (a,)
        elif kind == "aten.squeeze.dim":
            dim = draw(st.integers(0, len(shape) - 1))
            gone, args = [dim] if dim in ones else [], (a, _signed(draw, dim, len(shape)))
        else:
            gone, args = ones, (a, tuple(range(len(shape))))
        out = tuple(n for i, n in enumerate(shape) if i not in gone)
        return Case(kind, {"a": _operand(draw, shape)}, args, (_spec(*out),))

    return make()


@st.composite
def permuting(draw, kind):
    rank = 2 if kind in ("aten.t.default", "aten.numpy_T.default") else draw(st.integers(2, 4))
    atoms = draw(st.sampled_from([(B, S, 4, 6), (4, B, S, 2), (B * S, 4, 6, 2), (8, 4 * S, B, 1)]))
    shape = tuple(draw(st.permutations(atoms)))[:rank]
    order = draw(st.permutations(range(rank)))
    if kind == "aten.transpose.int":
        first, second = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1))
        order = list(range(rank))
        order[first], order[second] = second, first
        args = (a, _signed(draw, first, rank), _signed(draw, second, rank))
    elif kind == "aten.permute.default":
        args = (a, tuple(_signed(draw, d, rank) for d in order))
    else:
        order, args = [1, 0], (a,)
    return Case(kind, {"a": _operand(draw, shape)}, args, (_spec(*(shape[d] for d in order)),))


@st.composite
def expand(draw):
    out = draw(st.sampled_from([(B, S, 8), (B, 4, S, 2), (B, 1, S), (3, B, 4)]))
    kept = draw(st.integers(0, len(out)))
    shape = tuple(1 if draw(st.integers(0, 2)) == 0 else n for n in out[len(out) - kept :])
    wanted = tuple(
        -1 if n == m and i >= len(out) - kept and draw(st.booleans()) else n
        for i, (n, m) in enumerate(zip(out, (*(None,) * (len(out) - kept), *shape), strict=True))
    )
    return Case("aten.expand.default", {"a": _operand(draw, shape)}, (a, wanted), (_spec(*out),))


@st.composite
def cutting(draw, kind):
    """Slices, splits, scans and softmax along any dim, sharded or not."""
    shape = draw(st.sampled_from([(B, S, 8), (B, 4, S, 6), (S, 4, B), (8, 12), (B * S, 8)]))
    rank = len(shape)
    dim = draw(st.integers(0, rank - 1))
    length, place = shape[dim], _signed(draw, dim, rank)
    operand = _operand(draw, shape)

    def outs(*lengths):
        return tuple(_spec(*shape[:dim], n, *shape[dim + 1 :]) for n in lengths)

    if kind == "aten.slice.Tensor":
        if isinstance(length, int):
            start, stop, step = draw(st.integers(0, 2)), draw(st.integers(3, length)), 1
            if draw(st.booleans()):
                step = 2
            size = math.ceil((stop - start) / step)
        else:
            start, stop, step, size = 0, length, 1, length
        args = (a, place, start, stop, step)
        return Case(kind, {"a": operand}, args, outs(size))
    if kind in ("aten.split.Tensor", "aten.chunk.default"):
        if not isinstance(length, int):
            args = (a, length if kind == "aten.split.Tensor" else 1, place)
            return Case(kind, {"a": operand}, args, outs(length))
        step = draw(st.sampled_from([2, 3, length]))
        count = math.ceil(length / step)
        lengths = [min(step, length - i * step) for i in range(count)]
        number = step if kind == "aten.split.Tensor" else count
        if kind == "aten.chunk.default" and math.ceil(length / count) != step:
            lengths, number = [length], 1
        return Case(kind, {"a": operand}, (a, number, place), outs(*lengths))
    if kind == "aten.narrow.default":
        size = length - 2 if isinstance(length, int) else length
        return Case(kind, {"a": operand}, (a, place, 0, size), outs(size))
    if kind in ("aten.split_with_sizes.default", "aten.split.sizes"):
        lengths = (2, length - 2) if isinstance(length, int) else (length,)
        return Case(kind, {"a": operand}, (a, lengths, place), outs(*lengths))
    if kind == "aten.flip.default":
        dims = draw(st.sampled_from([(place,), tuple(range(rank))]))
        return Case(kind, {"a": operand}, (a, dims), outs(length))
    more = (False,) if kind.startswith("aten._") else ()
    return Case(kind, {"a": operand}, (a, place, *more), outs(length))


@st.composite
def triangle(draw, kind):
    shape = draw(st.sampled_from([(B, S, S), (8, 8), (B, 4, S, 6), (4, B, 2, S)]))
    args = (a, draw(st.integers(-1, 2)))
    return Case(kind, {"a": _operand(draw, shape)}, args, (_spec(*shape),))


@st.composite
def select(draw):
    shape = draw(st.sampled_from([(B, S, 8), (4, B, S), (B, 6), (3, B, 4, S)]))
    dim = draw(st.integers(0, len(shape) - 1))
    index = draw(st.integers(0, 2)) if isinstance(shape[dim], int) else draw(st.integers(-1, 0))
    args = (a, _signed(draw, dim, len(shape)), index)
    out = (*shape[:dim], *shape[dim + 1 :])
    return Case("aten.select.int", {"a": _operand(draw, shape)}, args, (_spec(*out),))


@st.composite
def cat(draw):
    shape = draw(st.sampled_from([(B, S, 8), (4, B, S), (B * S, 6)]))
    dim = draw(st.integers(0, len(shape) - 1))
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    lengths = [draw(st.sampled_from([4, 2, 1])) * shape[dim] for _ in names]
    operands = {
        name: _operand(draw, (*shape[:dim], n, *shape[dim + 1 :]))
        for name, n in zip(names, lengths, strict=True)
    }
    args = (tuple(Ref(name) for name in names), _signed(draw, dim, len(shape)))
    out = (*shape[:dim], sum(lengths), *shape[dim + 1 :])
    return Case("aten.cat.default", operands, args, (_spec(*out),))


@st.composite
def unbind(draw):
    shape = draw(st.sampled_from([(4, B, S), (B, 2, S, 4), (B * S, 3)]))
    dim = draw(st.sampled_from([i for i, n in enumerate(shape) if isinstance(n, int)]))
    out = _spec(*shape[:dim], *shape[dim + 1 :])
    args = (a, _signed(draw, dim, len(shape)))
    return Case("aten.unbind.int", {"a": _operand(draw, shape)}, args, (out,) * shape[dim])


@st.composite
def stack(draw):
    shape = draw(st.sampled_from([(B, S, 8), (4, B), (B * S,), (8,)]))
    dim = draw(st.integers(0, len(shape)))
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    operands = {name: _operand(draw, shape) for name in names}
    args = (tuple(Ref(name) for name in names), _signed(draw, dim, len(shape) + 1))
    out = _spec(*shape[:dim], len(names), *shape[dim:])
    return Case("aten.stack.default", operands, args, (out,))


@st.composite
def padding(draw, kind):
    shape = draw(st.sampled_from([(B, S, 8), (B, 4, S), (B * S, 6)]))
    count = draw(st.integers(1, 2))
    pairs = [draw(st.integers(0, 2)) for _ in range(2 * count)]
    out = list(shape)
    for i in range(count):
        out[-1 - i] = out[-1 - i] + pairs[2 * i] + pairs[2 * i + 1]
    more = ("constant", -7.0) if kind == "aten.pad.default" else (-7.0,)
    args = (a, tuple(pairs), *more)
    return Case(kind, {"a": _operand(draw, shape)}, args, (_spec(*out),))


CASES = {
    "aten.view.default": _reshaping("aten.view.default"),
    "aten.reshape.default": _reshaping("aten.reshape.default"),
    "aten._unsafe_view.default": _reshaping("aten._unsafe_view.default"),
    "aten.flatten.using_ints": flatten(),
    "aten.unflatten.int": unflatten(),
    "aten.unsqueeze.default": unsqueeze(),
    "aten.squeeze.default": _squeezing("aten.squeeze.default"),
    "aten.squeeze.dim": _squeezing("aten.squeeze.dim"),
    "aten.squeeze.dims": _squeezing("aten.squeeze.dims"),
    **{
        kind: permuting(kind)
        for kind in (
            "aten.transpose.int", "aten.permute.default", "aten.t.default", "aten.numpy_T.default",
        )
    },
    "aten.expand.default": expand(),
    **{
        kind: cutting(kind)
        for kind in (
            "aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes.default",
            "aten.chunk.default", "aten.split.sizes", "aten.cumsum.default", "aten.flip.default",
            "aten.cumprod.default",
            "aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int",
            "aten._log_softmax.default", "aten.narrow.default",
        )
    },
    "aten.tril.default": triangle("aten.tril.default"),
    "aten.triu.default": triangle("aten.triu.default"),
    "aten.select.int": select(),
    "aten.cat.default": cat(),
    "aten.stack.default": stack(),
    "aten.unbind.int": unbind(),
    "aten.pad.default": padding("aten.pad.default"),
    "aten.constant_pad_nd.default": padding("aten.constant_pad_nd.default"),
}  # fmt: skip
"""Kind -> strategy of its cases."""
