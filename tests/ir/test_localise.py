"""From a graph and strategies to local programs: what moves, where, and how often."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from shardwise.ir.argument import Ref
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import GraphInput, OperatorGraph, Parameter, SymbolRange
from shardwise.ir.layout import Partial
from shardwise.ir.localise import localise
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call, Move, Use, made_by
from shardwise.ir.template import Unit
from shardwise.ir.tensor import TensorSpec
from tests.support.hand_model import hand_graph
from tests.support.rig import strategy

B, S = symbol("B"), symbol("S")
IMPLEMENTATIONS = ("data", "tensor", "tensor_sequence", "ulysses")
MESHES = ("x0=2@l", "x0=4@l", "x0=2@l data=2@l", "data=2@l")


def program(implementation, mesh="x0=2@l", kv_heads=2, layers=2):
    graph, units = hand_graph(layers, kv_heads)
    mesh = Mesh.parse(mesh)
    return localise(graph, units, mesh, [strategy(implementation, mesh)] * len(units))


def collectives(unit, mesh):
    """Collectives of the moves of a unit, forward and backward."""
    found = Counter()
    for step in unit.steps:
        if isinstance(step, Move):
            ways = [(step.source.forward, step.target.forward)]
            if step.needs_gradient:
                ways.append((step.target.gradient, step.source.gradient))
            found += Counter(
                str(s.kind) for way in ways for s in lower(*way, mesh) if not s.is_local
            )
    return dict(found)


@pytest.mark.parametrize(
    ("implementation", "wanted"),
    [
        ("data", {}),
        ("tensor", {"all_reduce": 4}),
        ("tensor_sequence", {"all_gather": 4, "reduce_scatter": 4}),
        ("ulysses", {"all_to_all": 8}),
    ],
)
def test_a_layer_moves_no_more_than_it_must(implementation, wanted):
    """Megatron's four reductions, or as many gathers and scatters; q, k, v and the result of
    attention there and back."""
    found = program(implementation)
    for unit in found.units[1:3]:
        assert collectives(unit, found.mesh) == wanted


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_values_are_made_before_they_are_read_and_addends_do_not_leave(implementation, mesh):
    found = program(implementation, mesh, kv_heads=1)
    made = {name for name, _ in found.inputs}
    layouts = {}
    for unit in found.units:
        assert set(unit.reads) <= made
        inside = set(unit.reads)
        for step in unit.steps:
            if isinstance(step, Call):
                assert {ref.name for ref in step.operator.refs()} <= inside
                layouts |= dict(zip(made_by(step), step.writes, strict=True))
            elif isinstance(step, Move):
                assert step.value in inside
                layouts[step.name] = step.target
            inside |= set(made_by(step))
        assert set(unit.writes) <= inside
        made |= set(unit.writes)
        for name in unit.writes:
            assert not layouts[name].forward.addends, f"{name} leaves {unit.name} as an addend"
    assert all(layouts[name].forward.entries == () for name in found.outputs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equal_layers_become_equal_programs(implementation):
    found = program(implementation, "x0=2@l data=2@l", layers=3)

    def text(unit):
        return re.sub(r"(layers\.|[a-z]+|__)(\d+)", r"\1#", str(unit.steps))

    first, second = found.units[2:4]
    assert text(first).count("Call") > 10
    assert [type(s) for s in first.steps] == [type(s) for s in second.steps]
    assert text(first) == text(second)


def test_readers_share_a_move_and_uses():
    """One gather of the norm's result serves q, k and v; a tied table is read once per unit."""
    found = program("tensor_sequence")
    moves = [step.value for step in found.units[1].steps if isinstance(step, Move)]
    assert len(moves) == len(set(moves))
    uses = [step.parameter for unit in found.units for step in unit.steps if isinstance(step, Use)]
    assert Counter(uses)["table"] == 2 and max(Counter(uses).values()) == 2


def test_a_program_is_made_once():
    graph, units = hand_graph()
    mesh = Mesh.parse("x0=2@l")
    strategies = [strategy("ulysses", mesh)] * len(units)
    assert localise(graph, units, mesh, strategies) is localise(graph, units, mesh, strategies)


def test_strategies_fit_the_units():
    graph, units = hand_graph()
    mesh = Mesh.parse("x0=2@l")
    data, ulysses = strategy("data", mesh), strategy("ulysses", mesh)
    with pytest.raises(InvalidValueError, match="4 units but 1 strategies"):
        localise(graph, units, mesh, [data])
    with pytest.raises(InvalidValueError, match="same batch axes"):
        localise(graph, units, mesh, [data, ulysses, data, data])


# --- small graphs -------------------------------------------------------------------------------


def graph_of(operators, units, parameters=()):
    """A graph of one input x [B, S, 8] and the given operators; its units by name and end."""
    spec = TensorSpec((B, S, 8), "float32")
    graph = OperatorGraph(
        (GraphInput("x", spec),),
        tuple(Parameter(name, TensorSpec(shape, "float32")) for name, shape in parameters),
        (), tuple(operators), (Ref(operators[-1].name),),
        (SymbolRange("B", 1, None), SymbolRange("S", 1, None)),
    )  # fmt: skip
    starts = [0, *(end for _, end in units[:-1])]
    return graph, [Unit(n, (a, b)) for (n, b), a in zip(units, starts, strict=True)]


def op(name, kind, args, shape=(B, S, 8), dtype="float32"):
    args = tuple(Ref(a) if isinstance(a, str) else a for a in args)
    return Operator(name, f"aten.{kind}", args, (), (TensorSpec(shape, dtype),))


def test_positions_are_cut_once_where_they_are_made():
    """Two later layers read rotary factors beside rows: one slice, in the unit that made them."""
    operators = [
        op("places", "arange.default", (S,), (S,), "int64"),
        op("factors", "ones.default", ((S, 8),), (S, 8)),
        op("rows", "embedding.default", ("table", "places"), (S, 8)),
        op("first", "add.Tensor", ("x", "rows")),
        op("second", "mul.Tensor", ("first", "factors")),
        op("third", "mul.Tensor", ("second", "factors")),
    ]
    graph, units = graph_of(operators, [("a", 4), ("b", 5), ("c", 6)], [("table", (64, 8))])
    mesh = Mesh.parse("x0=2@l")
    found = localise(graph, units, mesh, [strategy("ulysses", mesh)] * 3)
    cuts = [
        (unit.name, step.value)
        for unit in found.units
        for step in unit.steps
        if isinstance(step, Move) and step.value in ("places", "factors")
    ]
    assert cuts == [("a", "places"), ("a", "factors")]


def test_a_sum_is_taken_once_whoever_reads_it_first():
    """The first reader wants it beside sharded work, the second whole: one reduction for both."""
    operators = [
        op("up", "linear.default", ("x", "w")),
        op("down", "linear.default", ("up", "v")),
        op("again", "linear.default", ("down", "w")),
        op("plain", "gelu.default", ("down",)),
        op("out", "linear.default", ("again", "v")),
        op("sum", "add.Tensor", ("out", "plain")),
    ]
    graph, units = graph_of(operators, [("a", 6)], [("w", (8, 8)), ("v", (8, 8))])
    mesh = Mesh.parse("x0=2@l")
    found = localise(graph, units, mesh, [strategy("tensor", mesh)])
    moves = [step for step in found.steps() if isinstance(step, Move)]
    ways = [(m.value, lower(m.source.forward, m.target.forward, mesh)) for m in moves]
    reduced = [v for v, steps in ways if any(s.kind == "all_reduce" for s in steps)]
    assert sorted(reduced) == ["down", "out"]


def test_reshapes_get_local_sizes_and_everything_else_stays_global():
    operators = [
        op("flat", "view.default", ("x", (B * S, 8)), (B * S, 8)),
        op("wide", "expand.default", ("x", (B, S, 8))),
        op("cut", "slice.Tensor", ("x", 2, 0, 4), (B, S, 4)),
        op("back", "squeeze.default", ("flat",), (B * S, 8)),
    ]
    graph, units = graph_of(operators, [("a", 4)])
    graph = replace(graph, outputs=(Ref("flat"), Ref("cut"), Ref("wide"), Ref("back")))
    mesh = Mesh.parse("data=2@l")
    found = localise(graph, units, mesh, [strategy("data", mesh)])
    calls = {step.operator.name: step.operator for step in found.steps() if isinstance(step, Call)}
    assert str(calls["flat"].args[1]) == str((B * S // 2, 8))
    assert calls["back"].kind == "aten.reshape.default"
    assert calls["wide"].args[1][1:] == (S, 8) and str(calls["wide"].args[1][0]) == "floor(B/2)"
    assert calls["cut"].args[1:] == (2, 0, 4)
    assert not any(
        isinstance(p, Partial) for step in found.steps() if isinstance(step, Call)
        for layout in step.writes for _, p in layout.forward.entries
    )  # fmt: skip
