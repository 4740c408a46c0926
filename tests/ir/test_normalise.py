"""Passes keep what a graph computes: in-place writes, no-ops, masks, the shift of the labels."""

import itertools

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.ir.argument import Dtype, Ref
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import GraphInput, OperatorGraph, SymbolRange
from shardwise.ir.normalise import normalise
from shardwise.ir.operator import Operator
from shardwise.ir.passes_functional import Functionalise, is_in_place
from shardwise.ir.passes_mask import ATTENTION, ClassifyMasks, MaskKind
from shardwise.ir.passes_shift import MoveShift
from shardwise.ir.promotion import promoted
from shardwise.ir.rewrite import gradient_values, without_dead_code
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace import trace
from shardwise.runtime.interpreter import interpret
from tests.models.hand_written import Maker
from tests.support.traced import differences, text_batch, traced_model, values_of

B, S = symbol("B"), symbol("S")


def traced_outputs(function, shape="float64[B, S, 8]", **buffers):
    torch.set_num_threads(1)
    model = Maker(function, **buffers).double()
    traced = trace(model, {"x": shape}, dims={"B": (1, 9), "S": (1, 64)}, contract=False)
    return model, traced


# in-place writes


def _slices(self, x):
    y = x * self.scale
    y[:, 0] = 0
    y[:, 1:3] += 1
    y[..., -1] *= 2
    return y


def _through_views(self, x):
    y = x * self.scale
    y.transpose(1, 2)[:, 0] = 3
    y.view(y.shape[0], -1, 4)[:, 1].mul_(2)
    y.permute(2, 0, 1)[1] += 1
    return y


def _stale_views(self, x):
    y = x * self.scale
    first, rest = y[:, :1], y[:, 1:]
    y += 1
    rest *= 2
    return first + y[:, :1], rest, y


def _split_parts(self, x):
    """Autograd refuses this of values that have a gradient."""
    y = x * 2
    a, b = y.split(4, dim=-1)
    a.add_(1)
    b.neg_()
    return y * self.scale, a * b


def _chained(self, x):
    y = x * self.scale
    z = y.add_(1).mul_(3)
    z.clamp_(-1, 1)
    return y + z


def _masked(self, x):
    y = x * self.scale
    y.masked_fill_(x > 0, 0.5)
    y[x < -1] = 2.0
    y[:, 0].zero_()
    y[:, 1].fill_(4)
    y[:, :2].copy_(x[:, 1:2].expand(-1, 2, -1))
    return y


def _dtypes(self, x):
    y = (x * self.scale).float()
    y += x
    z = y.clone()
    z.copy_(x)
    z.mul_(x)
    return y, z


def _of_a_cast_to_the_same(self, x):
    y = x * self.scale
    y.to(x.dtype).add_(1)
    F.dropout(y, 0.3, training=False).mul_(2)
    return y


@pytest.mark.parametrize(
    "function",
    [_slices, _through_views, _stale_views, _split_parts, _chained, _masked, _dtypes,
     _of_a_cast_to_the_same],
)  # fmt: skip
def test_in_place_writes_become_functional(function):
    model, traced = traced_outputs(function)
    assert not [o for o in traced.graph.operators if is_in_place(o.kind)]
    for rows, length in ((1, 4), (2, 9)):
        x = torch.randn(rows, length, 8).double()
        found = interpret(traced.graph, values_of(model, traced, {"x": x}))
        wanted = model(x.clone())
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)
        grads = [
            torch.autograd.grad(sum(o.double().pow(2).sum() for o in outputs), model.scale)[0]
            for outputs in (found, wanted)
        ]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)


def test_written_buffers_are_updates():
    def function(self, x):
        self.count.add_(1)
        self.mean.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        return x * self.scale + self.mean

    buffers = {"count": torch.tensor(3), "mean": torch.randn(8)}
    model, traced = traced_outputs(function, **buffers)
    graph = traced.graph
    assert [name for name, _ in graph.updates] == ["count", "mean"]
    x = torch.randn(2, 5, 8).double()
    values = values_of(model, traced, {"x": x})
    values = {name: value.clone() for name, value in values.items()}
    run = sympy.S.Zero  # the updates are outputs of a graph of their own
    assert run == 0
    updated = OperatorGraph(
        graph.inputs, graph.parameters, graph.constants, graph.operators,
        tuple(ref for _, ref in graph.updates), graph.symbols,
    )  # fmt: skip
    found = interpret(updated, values)
    model(x)
    assert torch.equal(found[0], model.count) and torch.equal(found[1], model.mean)


def _parameter(self, x):
    with torch.no_grad():
        self.scale.mul_(2)
    return x * self.scale


def _random(self, x):
    return x * self.scale * torch.empty_like(x).bernoulli_(0.5)


def _reshaped(self, x):
    y = x * self.scale
    y.reshape(-1, 8)[0] = 1
    return y


def _expanded(self, x):
    y = self.scale * x[:1, :1].sum()
    y.expand(x.shape[0], -1).add_(1)
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [(_parameter, "parameter scale"), (_random, "random"), (_reshaped, "strides")],
)
def test_refused_writes_name_the_line(function, message):
    with pytest.raises(UnsupportedError, match=r"test_normalise.py:\d+") as caught:
        traced_outputs(function)
    assert message in str(caught.value)


def test_a_reshape_written_to_is_fine_when_its_original_is_read_no_more():
    def function(self, x):
        y = (x * self.scale).reshape(-1, 8)
        y += 1
        return y

    model, traced = traced_outputs(function)
    x = torch.randn(2, 3, 8).double()
    assert torch.equal(interpret(traced.graph, values_of(model, traced, {"x": x}))[0], model(x))


def test_graphs_without_writes_are_returned_as_they_are():
    graph = traced_outputs(lambda self, x: x * self.scale)[1].graph
    assert Functionalise().apply(graph) is graph


# clean-up


def _no_ops(self, x):
    y = (x.contiguous().clone() * self.scale).to(x.dtype).view(x.shape)
    y = F.dropout(y, 0.0).expand(x.shape[0], -1, -1)[:, :] * 1 / 1
    return torch.cat([y, y[..., 8:]], -1)


def test_no_ops_are_gone():
    model, traced = traced_outputs(_no_ops)
    assert [o.kind for o in traced.graph.operators] == ["aten.mul.Tensor"]
    x = torch.randn(2, 3, 8).double()
    assert torch.equal(interpret(traced.graph, values_of(model, traced, {"x": x}))[0], model(x))


def _kinds(self, x):
    y = (x * self.scale).float().type_as(self.scale).flatten(1).unflatten(1, (-1, 8))
    return y.transpose(1, 2).reshape(-1).view(x.shape[0], -1), y[:, -2:], self.scale.double()


def test_one_kind_where_torch_has_many():
    model, traced = traced_outputs(_kinds)
    kinds = {o.kind for o in traced.graph.operators}
    assert kinds == {
        "aten.mul.Tensor", "aten.to.dtype", "aten.reshape.default", "aten.transpose.int",
        "aten.slice.Tensor",
    }  # fmt: skip
    (cut,) = (o for o in traced.graph.operators if o.kind == "aten.slice.Tensor")
    assert cut.args[1:] == (1, S - 2, S)
    x = torch.randn(2, 3, 8).double()
    for a, b in zip(
        interpret(traced.graph, values_of(model, traced, {"x": x})), model(x), strict=True
    ):
        assert torch.equal(a, b)


def test_float_zero_is_added_and_gradients_stop_at_detach():
    def function(self, x):
        return x * self.scale + 0, (x * self.scale).detach(), x.detach()

    graph = traced_outputs(function)[1].graph
    kinds = [o.kind for o in graph.operators]
    assert "aten.add.Tensor" in kinds and kinds.count("aten.detach.default") == 1
    assert graph.outputs[2] == Ref("x")
    assert Ref("detach").name not in gradient_values(graph)


def test_dead_code_goes_but_state_stays():
    def function(self, x):
        return x * self.scale + 0 * (self.persistent * x).sum().detach() * 0

    graph = traced_outputs(function, persistent=torch.ones(8))[1].graph
    assert [c.name for c in graph.constants] == ["persistent"]
    dead = OperatorGraph(
        graph.inputs, graph.parameters, graph.constants, graph.operators,
        (Ref(graph.inputs[0].name),), graph.symbols,
    )  # fmt: skip
    alive = without_dead_code(dead)
    assert alive.operators == () and alive.parameters == graph.parameters
    assert [c.name for c in alive.constants] == ["persistent"]


DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=3))
def test_promotion_is_that_of_torch(parts):
    tensors = [torch.ones(() if scalar else (2,), dtype=getattr(torch, d)) for d, scalar in parts]
    result = tensors[0]
    if len(tensors) == 2:
        result = torch.result_type(*tensors)
    elif len(tensors) == 3:
        result = torch.where(torch.tensor(True), *tensors[:2]).dtype
        parts = parts[:2]
    else:
        result = result.dtype
    specs = [TensorSpec(() if scalar else (2,), d) for d, scalar in parts]
    assert promoted(specs) == str(result).removeprefix("torch.")


# masks


def attention(mask):
    """A model of one attention with a mask that is made by `mask(self, x)`."""

    def function(self, x):
        q = (x * self.scale).unsqueeze(1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask(self, x)).sum((0, 1, 2))

    return function


def _positions(x):
    return torch.arange(x.shape[1])


def _tril(self, x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


def _compared(self, x):
    i = _positions(x)
    return (i[None, :] <= i[:, None])[None, None].expand(x.shape[0], 1, -1, -1)


def _additive(self, x):
    n = x.shape[1]
    return torch.full((n, n), float("-inf"), dtype=x.dtype).triu(1)


def _finfo(self, x):
    i = _positions(x)
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)
    return mask.masked_fill(i[None, :] > i[:, None], torch.finfo(x.dtype).min)


def _where(self, x):
    i = _positions(x)
    return torch.where(i[None, :] > i[:, None], float("-inf"), 0.0).to(x.dtype)


def _negated(self, x):
    return ~(_positions(x)[None, :] > _positions(x)[:, None])


def _window(self, x):
    i = _positions(x)
    return (i[None, :] <= i[:, None]) & (i[None, :] > i[:, None] - 64)


def _band(self, x):
    i = _positions(x)
    return (i[None, :] - i[:, None]).abs() <= 16


def _repeated(self, x):
    i = _positions(x).unsqueeze(0).repeat(x.shape[0], 1).permute(1, 0).transpose(0, 1)
    return (i[:, None, :] <= i[:, :, None])[:, None]


def _everything(self, x):
    i = _positions(x)
    return (i[None, :] >= 0) & (i[:, None] < x.shape[1])


def _chunked(self, x):
    i = _positions(x)
    return (i[None, :] // 4 == i[:, None] // 4) & (i[None, :] <= i[:, None])


def _prefix(self, x):
    i = _positions(x)
    return (i[None, :] <= i[:, None]) | (i[None, :] < 4)


def _strict_plus_diagonal(self, x):
    i = _positions(x)
    return i[None, :] <= i[:, None] + 1


def _from_input(self, x):
    return (x[:, None, None, :, 0] > 0) | _tril(self, x)


def _from_buffer(self, x):
    return self.table[: x.shape[1], : x.shape[1]]


def _bias(self, x):
    i = _positions(x)
    return -(i[:, None] - i[None, :]).abs().to(x.dtype)


def _reverse(self, x):
    i = _positions(x)
    return i[None, :] >= i[:, None]


MASKS = {
    _tril: "causal", _compared: "causal", _additive: "causal", _finfo: "causal",
    _where: "causal", _negated: "causal", _everything: "none", _window: "window 64",
    _band: "band 17", _repeated: "causal",
    _chunked: "unknown", _prefix: "unknown", _strict_plus_diagonal: "unknown",
    _from_input: "unknown", _from_buffer: "unknown", _bias: "unknown", _reverse: "unknown",
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
def test_masks_are_classified(mask):
    model = Maker(attention(mask)).double()
    model.register_buffer("table", torch.ones(128, 128).tril().bool())
    traced = trace(
        model, {"x": "float64[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 128)}, contract=False
    )
    (use,) = traced.masks
    assert str(use).split(": ")[1].split(" (")[0] == MASKS[mask]
    assert bool(use.reason) == (use.kind is MaskKind.UNKNOWN)
    (core,) = (o for o in traced.graph.operators if o.kind == ATTENTION)
    gone = use.kind in (MaskKind.CAUSAL, MaskKind.NONE)
    assert (len(core.refs()) == 3) == gone
    if gone:
        assert core.args[3:] == (None, 0.0, use.kind is MaskKind.CAUSAL)
        assert not {"aten.arange.default", "aten.full.default"} & {
            o.kind for o in traced.graph.operators
        }
    for length in (2, 7, 100):
        x = torch.randn(2, length, 8).double()
        found = interpret(traced.graph, values_of(model, traced, {"x": x}))[0]
        torch.testing.assert_close(found, model(x), rtol=1e-12, atol=1e-12)


def test_a_window_is_causal_up_to_its_width_only():
    """Seen at the trace's example (S = 48) alone, a window of 64 looks causal."""
    for longest, kind in ((64, "causal"), (65, "window")):
        for dims, sizes in (((1, longest), None), ((1, 128), {"S": longest})):
            traced = trace(
                Maker(attention(_window)).double(), {"x": "float64[B, S, 8]"},
                dims={"B": (1, 9), "S": dims}, max_sizes=sizes, contract=False,
            )  # fmt: skip
            assert traced.masks[0].kind == kind


def test_cross_attention_is_never_causal():
    """With other numbers of rows and columns, is_causal would mean something else."""

    def function(self, x):
        q, k = (x * self.scale).unsqueeze(1), (x[:, 1:] * self.scale).unsqueeze(1)
        mask = torch.ones(x.shape[1], x.shape[1] - 1, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    assert traced_outputs(function)[1].masks[0].kind is MaskKind.UNKNOWN


def _mask_graph(conditions):
    """Attention under a conjunction of a*i + b*j + c >= 0 over rows i and columns j."""
    spec, square = TensorSpec((B, 4, S, 8), "float32"), TensorSpec((S, S), "int64")
    q = GraphInput("q", spec)
    operators = [
        Operator("n", "aten.arange.default", (S,), (), (TensorSpec((S,), "int64"),)),
        Operator("i", "aten.unsqueeze.default", (Ref("n"), 1), (), (TensorSpec((S, 1), "int64"),)),
    ]
    mask = None
    for number, (a, b, c) in enumerate(conditions):

        def add(name, kind, *args, out=square, number=number):
            operators.append(Operator(f"{name}{number}", kind, args, (), (out,)))
            return Ref(f"{name}{number}")

        row = add("row", "aten.mul.Tensor", Ref("i"), a, out=TensorSpec((S, 1), "int64"))
        column = add("column", "aten.mul.Tensor", Ref("n"), b, out=TensorSpec((S,), "int64"))
        total = add("total", "aten.add.Tensor", row, column)
        truth = add("truth", "aten.ge.Scalar", total, -c, out=TensorSpec((S, S), "bool"))
        mask = (
            truth
            if mask is None
            else add("both", "aten.bitwise_and.Tensor", mask, truth, out=TensorSpec((S, S), "bool"))
        )
    operators.append(Operator("core", ATTENTION, (Ref("q"), Ref("q"), Ref("q"), mask), (), (spec,)))
    symbols = (SymbolRange("B", 1, 4), SymbolRange("S", 1, LONGEST))
    return OperatorGraph((q,), (), (), tuple(operators), (Ref("core"),), symbols)


LONGEST = 9
_SMALL = st.integers(-2, 2)


@settings(max_examples=150)
@example([(1, -1, 0), (-1, 1, 5), (-1, 1, 3)])
@example([(1, -1, 0), (-1, 2, 0)])
@given(st.lists(st.tuples(_SMALL, _SMALL, st.integers(-3, 9)), min_size=1, max_size=3))
def test_classification_agrees_with_brute_force(conditions):
    """Causal and full are exactly those masks that are so at every size of the range."""
    use = ClassifyMasks({}).apply(_mask_graph(conditions))[1][0]
    causal = full = True
    windows = bands = set(range(1, LONGEST))
    for size in range(1, LONGEST + 1):
        i, j = np.indices((size, size))
        mask = np.ones((size, size), dtype=bool)
        for a, b, c in conditions:
            mask &= a * i + b * j + c >= 0
        causal &= bool((mask == (j <= i)).all())
        full &= bool(mask.all())
        windows = {w for w in windows if (mask == ((j <= i) & (j > i - w))).all()}
        bands = {w for w in bands if (mask == (abs(i - j) < w)).all()}
    if conditions == [(1, -1, 0), (-1, 1, 5), (-1, 1, 3)]:
        assert (use.kind, use.window) == (MaskKind.WINDOW, 4)
    if use.kind is MaskKind.CAUSAL:
        assert causal
    elif use.kind is MaskKind.NONE:
        assert full
    elif use.kind is MaskKind.WINDOW:
        assert windows == {use.window}
    elif use.kind is MaskKind.BAND:
        assert bands == {use.window}
    simple = all((a, b) in ((0, 0), (1, -1), (-1, 1)) for a, b, _ in conditions)
    if simple and full:
        assert use.kind is MaskKind.NONE


# the shift of the labels


def _shifted_loss(columns=False, start=1, ignore=-100):
    def function(self, x):
        logits = x * self.scale
        labels = (x[..., 0] * 3).long().remainder(8)
        logits, labels = logits[:, :-1], labels[:, start:]
        if columns:
            return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=ignore)
        return F.cross_entropy(logits.reshape(-1, 8), labels.reshape(-1), ignore_index=ignore)

    return function


def shift_model(**options):
    model = Maker(_shifted_loss(**options)).double()
    inputs = {"x": "float64[B, S, 8]"}
    return model, trace(model, inputs, dims={"B": (1, 9), "S": (1, 64)})


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("ignore", [-100, 2])
def test_the_shift_moves_to_the_labels(columns, ignore):
    model, traced = shift_model(columns=columns, ignore=ignore)
    cuts = [o for o in traced.graph.operators if o.kind == "aten.slice.Tensor"]
    assert [o.outputs[0].dtype for o in cuts] == ["int64"]
    for rows, length in ((1, 3), (2, 8)):
        batch = {"x": torch.randn(rows, length, 8).double()}
        loss, gradient = differences(model, traced, batch)
        assert loss <= 1e-14 and gradient <= 1e-14


def test_the_whole_logits_reach_the_loss_of_a_model():
    model, traced = traced_model("hand-written")
    (loss,) = (o for o in traced.graph.operators if "cross_entropy" in o.kind)
    assert traced.graph.spec(loss.args[0]).shape == (B * S, 64)
    difference, gradient = differences(model, traced, text_batch(2, 17))
    assert difference == 0.0 and gradient <= 1e-15


def test_other_cuts_stay():
    """A second position for the labels, and a shift that does not lose one position."""

    def two_ahead(self, x):
        logits, labels = x * self.scale, x[..., 0].long().remainder(8)
        return F.cross_entropy(logits[:, :-2].reshape(-1, 8), labels[:, 2:].reshape(-1))

    def unshifted(self, x):
        logits, labels = x * self.scale, x[..., 0].long().remainder(8)
        return F.cross_entropy(logits[:, :-1].reshape(-1, 8), labels[:, :-1].reshape(-1))

    for function in (two_ahead, unshifted):
        model = Maker(function).double()
        graph = trace(model, {"x": "float64[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)}).graph
        assert MoveShift().apply(graph) is graph
        cuts = [o for o in graph.operators if o.kind == "aten.slice.Tensor"]
        assert len(cuts) == 2


def test_normalise_twice_changes_nothing():
    graph = traced_model("hand-written")[1].graph
    again = normalise(graph, contract=False).graph
    assert str(again) == str(graph)


def test_dtype_arguments_stay_in_place():
    graph = traced_outputs(lambda self, x: (x * self.scale).float())[1].graph
    assert graph.operators[-1].args[1] == Dtype("float32")
    assert list(itertools.chain(*(o.kwargs for o in graph.operators))) == []
