"""Random legal graphs print and parse back whole; damaged text gives a ParseError only."""

import random
from dataclasses import replace

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import ParseError, ShardwiseError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import (
    Constant,
    GraphInput,
    Item,
    OperatorGraph,
    Parameter,
    Section,
    SymbolRange,
)
from shardwise.ir.graph_text import format_graph, graph_digest, parse_graph
from shardwise.ir.operator import Argument, Dtype, Operator, Ref
from shardwise.ir.tensor import TensorSpec

B, S = symbol("B"), symbol("S")
SYMBOLS = (SymbolRange("B", 1, None), SymbolRange("S", 2, 4096))
SIZES = st.sampled_from([B, S, 2 * B * S, S + 1, sympy.Max(B, S), sympy.floor(S / 4), S**2 / 2])
DTYPES = st.sampled_from(["float32", "bfloat16", "int64", "bool"])
CONCRETE = st.builds(TensorSpec, st.lists(st.integers(0, 64), max_size=3).map(tuple), DTYPES)
SPECS = st.builds(
    TensorSpec, st.lists(st.one_of(st.integers(0, 64), SIZES), max_size=4).map(tuple), DTYPES
)
NAMES = st.one_of(
    st.from_regex(r"[a-z][a-z0-9_.]{0,6}", fullmatch=True), st.text(min_size=1, max_size=5)
).filter(lambda name: "#" not in name)
COSTS = st.one_of(st.just(sympy.S.Zero), SIZES, st.sampled_from([3 * B * S**2 + 4 * S, B / 2]))


@st.composite
def graphs(draw: st.DrawFn) -> OperatorGraph:
    """A legal graph with every feature: ties, sections, several outputs, updates, odd names."""
    names = iter(draw(st.lists(NAMES, min_size=22, max_size=22, unique=True)))
    inputs = [GraphInput(next(names), draw(SPECS)) for _ in range(draw(st.integers(0, 2)))]
    parameters = [
        Parameter(
            next(names),
            draw(CONCRETE),
            draw(st.booleans()),
            tuple(next(names) for _ in range(draw(st.integers(0, 2)))),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    fused, start = next(names), 0
    for part in range(draw(st.integers(0, 3))):
        stop = start + draw(st.integers(1, 5))
        spec = TensorSpec((2, stop - start), "float32")
        parameters.append(
            Parameter(f"{fused}#{part}", spec, section=Section(fused, 1, start, stop))
        )
        start = stop
    constants = [
        Constant(next(names), draw(CONCRETE), draw(st.booleans()))
        for _ in range(draw(st.integers(0, 2)))
    ]
    items: list[Item] = [*inputs, *parameters, *constants]
    values = [Ref(item.name) for item in items]
    operators = []
    for _ in range(draw(st.integers(0 if values else 1, 6))):
        operator = Operator(
            next(names),
            draw(st.sampled_from(["aten.add.Tensor", "aten.split.Tensor", "my op"])),
            tuple(draw(st.lists(arguments(values), max_size=3))),
            tuple(draw(st.dictionaries(st.sampled_from(["a", "b1"]), arguments(values))).items()),
            tuple(draw(st.lists(SPECS, min_size=1, max_size=3))),
            draw(st.sampled_from(["", "layers.0", "odd path"])),
            draw(st.sampled_from(["", "model.py:3", 'a"b\n'])),
            *(draw(COSTS) for _ in range(3)),
        )
        operators.append(operator)
        values += [Ref(operator.name, index) for index in range(len(operator.outputs))]
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    updated = [c for c in constants if draw(st.booleans())]
    return OperatorGraph(
        tuple(inputs),
        tuple(parameters),
        tuple(constants),
        tuple(operators),
        tuple(outputs),
        SYMBOLS,
        tuple((constant.name, Ref(constant.name)) for constant in updated),
    )


def arguments(values: list[Ref]) -> st.SearchStrategy[Argument]:
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(-99, 99), st.floats(), st.text(max_size=4), SIZES,
        st.builds(Dtype, DTYPES), *([st.sampled_from(values)] * 3 if values else []),
    )  # fmt: skip
    return st.one_of(leaves, st.lists(leaves, max_size=3).map(tuple))


SLOW = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(graphs())
@SLOW
def test_text_round_trips_whole(graph: OperatorGraph) -> None:
    text = str(graph)
    again = OperatorGraph.parse(text)
    assert again == graph
    assert str(again) == text
    assert again.digest() == graph.digest()
    assert parse_graph(text + "\n") == graph
    assert all(line.isascii() and line.isprintable() for line in text.split("\n"))
    assert text.count("\n") == (
        sum(len(getattr(graph, items)) for items in ("inputs", "parameters", "constants"))
        + len(graph.operators) + len(graph.outputs) + len(graph.symbols) + len(graph.updates)
    )  # fmt: skip


@given(graphs(), st.integers(0, 2**32))
@SLOW
def test_damaged_text_is_a_parse_error_or_a_legal_graph(graph: OperatorGraph, seed: int) -> None:
    rng = random.Random(seed)
    text = str(graph)
    for _ in range(20):
        damaged = damage(text, rng)
        try:
            again = OperatorGraph.parse(damaged)
        except ShardwiseError as error:
            assert type(error) is ParseError
            assert "\n" not in str(error)
        else:
            assert OperatorGraph.parse(str(again)) == again


def damage(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text))
    stop = min(len(text), start + rng.choice([0, 1, 1, 2, 9]))
    lines = text.split("\n")
    match rng.randrange(5):
        case 0:
            return text[:start] + text[stop:]
        case 1:
            return text[:start] + rng.choice('%(){}[]",=:->. \\aBS019*\n\x00é') + text[stop:]
        case 2:
            return text[:start]
        case 3:
            rng.shuffle(lines)
            return "\n".join(lines)
        case _:
            del lines[rng.randrange(len(lines))]
            return "\n".join(lines)


@given(graphs())
@SLOW
def test_digest_does_not_depend_on_names_of_operators(graph: OperatorGraph) -> None:
    names = {operator.name: f"##{index}" for index, operator in enumerate(graph.operators)}

    def change(ref: Ref) -> Ref:
        return Ref(names.get(ref.name, ref.name), ref.index)

    renamed = replace(
        graph,
        operators=tuple(
            replace(operator.with_refs(change), name=names[operator.name], source="")
            for operator in graph.operators
        ),
        outputs=tuple(map(change, graph.outputs)),
        updates=tuple((name, change(ref)) for name, ref in graph.updates),
    )
    assert graph_digest(renamed) == graph_digest(graph)


EXAMPLE = """graph 1
symbol S in 2:4096
input ids int64[2, S]
parameter embed.weight float32[16, 4] alias=head.weight
parameter w#a float32[3, 4] section=w[0, 0:3]
parameter w#b float32[1, 4] frozen section=w[0, 3:4]
constant mean float32[] persistent
operator e = aten.embedding.default(%embed.weight, %ids) -> float32[2, S, 4] saved={16*S}
operator m = aten.mean.default(%e, dtype=float32) -> float32[] module=norm source="n.py:3"
update mean = %m
output %m
output %e"""


def test_text_of_an_example() -> None:
    text = EXAMPLE.replace(" frozen", "")
    graph = parse_graph(text)
    assert format_graph(graph) == text
    assert graph.operator("m").args == (Ref("e"),)
    assert graph.updates == (("mean", Ref("m")),)
    assert graph.outputs == (Ref("m"), Ref("e"))
    with pytest.raises(ParseError, match="trainable are equal"):
        parse_graph(EXAMPLE)


def test_lines_of_different_kinds_may_be_mixed() -> None:
    first, *rest = EXAMPLE.replace(" frozen", "").split("\n")
    moved = [first, *rest[8:], *rest[:8]]
    assert parse_graph("\n".join(moved)) == parse_graph("\n".join([first, *rest]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line is 'graph 1'"),
        ("graph 2\noutput %x", "its first line is 'graph 1'"),
        ("graph 1\nopertor x", "line 2 of the graph is 'opertor x': a line begins with one of"),
        ("graph 1\ninput x int8[]\n\noutput %x", "line 3 of the graph is ''"),
        ("graph 1\ninput x int9[]\noutput %x", "line 2 of the graph: cannot parse 'int9"),
        ("graph 1\ninput x int8[]", "no output"),
        ("graph 1\ninput x int8[]\noutput %y", "%y, which no item before"),
        ("graph 1\ninput x int8[]\nupdate y = %x\noutput %x", "update of 'y'"),
        ("graph 1\ninput x int8[]\nupdate y %x\noutput %x", "line 3 of the graph"),
        ("graph 1\r\ninput x int8[]\r\noutput %x", "its first line is"),
        (b"graph 1", "expected its text"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
