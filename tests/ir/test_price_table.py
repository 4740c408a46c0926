"""PriceTable: the reference evaluator against exact fractions, text, arrays, errors."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.price_block import Block
from shardwise.ir.price_node import Edge, Node, NodeArrays, Option
from shardwise.ir.price_table import Choice, MemoryRow, PriceTable

AMOUNTS = st.floats(0, 1e12, allow_nan=False) | st.integers(0, 9).map(float)
NAMES = st.text(min_size=1, max_size=6) | st.from_regex(r"[a-z]{1,4}(\.[0-9])?", fullmatch=True)


@st.composite
def nodes(draw: st.DrawFn, name: str, slots: int, rows: int) -> Node:
    layouts = st.integers(0, 2)
    return Node(
        name,
        tuple(
            Option(
                draw(NAMES),
                draw(AMOUNTS),
                tuple(draw(AMOUNTS) for _ in range(rows)),
                tuple(draw(layouts) for _ in range(slots)),
                draw(layouts),
            )
            for _ in range(draw(st.integers(1, 3)))
        ),
    )


@st.composite
def edges(draw: st.DrawFn, source: Node, target: Node, slot: int) -> Edge:
    shape = (source.output_layout_count(), target.input_layout_count(slot))
    costs = tuple(tuple(draw(AMOUNTS) for _ in range(shape[1])) for _ in range(shape[0]))
    return Edge(source.name, target.name, slot, costs)


@st.composite
def blocks(draw: st.DrawFn, name: str, rows: int) -> Block:
    """Nodes in a line; a node reads the one before at slot 0, the first the chain or join."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    members = tuple(draw(nodes(each, draw(st.integers(1, 2)), rows)) for each in names)
    flows = tuple(
        draw(edges(members[place - 1], members[place], 0)) for place in range(1, len(members))
    )
    chain = draw(edges(members[-1], members[0], 0)) if draw(st.booleans()) else None
    return Block(name, draw(st.integers(1, 3)), members, flows, chain)


@st.composite
def tables(draw: st.DrawFn) -> PriceTable:
    rows = draw(st.lists(NAMES, max_size=2, unique=True))
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    parts = tuple(draw(blocks(name, len(rows))) for name in names)
    joins = tuple(
        draw(edges(first.nodes[-1], second.nodes[0], 0)) if draw(st.booleans()) else None
        for first, second in itertools.pairwise(parts)
    )
    return PriceTable(
        parts,
        joins,
        tuple(MemoryRow(name, draw(AMOUNTS)) for name in rows),
        draw(AMOUNTS),
        tuple(draw(AMOUNTS) for _ in rows),
    )


@st.composite
def tables_with_choices(draw: st.DrawFn) -> tuple[PriceTable, Choice]:
    table = draw(tables())
    return table, tuple(
        tuple(
            tuple(draw(st.integers(0, len(node.options) - 1)) for node in block.nodes)
            for _ in range(block.count)
        )
        for block in table.blocks
    )


def unrolled(table: PriceTable, choice: Choice) -> tuple[Fraction, list[Fraction]]:
    """The statement in exact fractions over a flat list of copies, sharing no code."""
    flat = [
        (number, copy, dict(zip((n.name for n in block.nodes), block.nodes, strict=True)))
        for number, block in enumerate(table.blocks)
        for copy in range(block.count)
    ]
    picked = [
        {
            name: node.options[choice[number][copy][place]]
            for place, (name, node) in enumerate(members.items())
        }
        for number, copy, members in flat
    ]
    total = Fraction(table.fixed_time_s)
    used = [Fraction(amount) for amount in table.fixed_row_bytes]
    for here, (number, _, _) in enumerate(flat):
        for option in picked[here].values():
            total += Fraction(option.time_s)
            for row, amount in enumerate(option.row_bytes):
                used[row] += Fraction(amount)
        links = [(edge, here) for edge in table.blocks[number].edges]
        if here + 1 < len(flat):
            same = flat[here + 1][0] == number
            onward = table.blocks[number].chain if same else table.joins[number]
            links += [(onward, here + 1)] if onward else []
        for edge, there in links:
            row = picked[here][edge.source].output_layout
            column = picked[there][edge.target].input_layouts[edge.slot]
            total += Fraction(edge.cost_s[row][column])
    return total, used


@settings(deadline=None, max_examples=60)
@given(tables_with_choices())
def test_evaluate_is_the_statement_in_exact_arithmetic(case: tuple[PriceTable, Choice]) -> None:
    table, choice = case
    total, used = unrolled(table, choice)
    assert table.evaluate(choice) == (float(total), tuple(map(float, used)))
    budgets = [row.budget_bytes for row in table.rows]
    assert table.overrun_bytes(choice) == tuple(
        max(0.0, float(amount) - budget) for amount, budget in zip(used, budgets, strict=True)
    )


@settings(deadline=None, max_examples=40)
@given(tables())
def test_text_round_trips(table: PriceTable) -> None:
    assert PriceTable.parse(str(table)) == table
    assert str(table).isascii()
    for block in table.blocks:
        assert Block.parse(str(block)) == block
        for node in block.nodes:
            assert Node.parse(str(node)) == node
        for edge in block.edges:
            assert Edge.parse(str(edge)) == edge
    for row in table.rows:
        assert MemoryRow.parse(str(row)) == row


@settings(deadline=None, max_examples=25)
@given(tables())
def test_arrays_round_trip(table: PriceTable) -> None:
    for block in table.blocks:
        for node in block.nodes:
            arrays = node.arrays()
            count = len(node.options)
            assert arrays.row_bytes.shape == (count, len(table.rows))
            assert arrays.input_layouts.shape == (count, node.slot_count)
            labels = [option.label for option in node.options]
            assert Node.from_arrays(node.name, labels, arrays=arrays) == node
        for edge in block.edges:
            again = Edge.from_array(edge.source, edge.target, slot=edge.slot, cost_s=edge.array())
            assert again == edge


def small() -> PriceTable:
    """Two layers of two nodes between an embedding and a head; one memory row."""
    embed = Node("embed", (Option("only", 1.0, (10.0,), (), 0),))
    attention = Node(
        "attention",
        (Option("data", 4.0, (8.0,), (0,), 0), Option("tensor", 3.0, (2.0,), (1,), 1)),
    )
    mlp = Node(
        "mlp", (Option("data", 6.0, (8.0,), (0,), 0), Option("tensor", 5.0, (2.0,), (1,), 1))
    )
    costs = ((0.0, 0.5), (0.25, 0.0))
    layer = Block(
        "layer",
        2,
        (attention, mlp),
        (Edge("attention", "mlp", 0, costs),),
        Edge("mlp", "attention", 0, costs),
    )
    head = Node("head", (Option("only", 2.0, (1.0,), (0,), 0),))
    return PriceTable(
        (Block("embed", 1, (embed,)), layer, Block("head", 1, (head,))),
        (Edge("embed", "attention", 0, (costs[0],)), Edge("mlp", "head", 0, ((0.0,), (0.25,)))),
        (MemoryRow("stage0", 40.0),),
        100.0,
        (3.0,),
    )


def test_a_table_small_enough_to_check_by_hand() -> None:
    table = small()
    mixed = (((0,),), ((0, 1), (1, 0)), ((0,),))
    # options 1 + 4 + 5 + 3 + 6 + 2; edges .5 and .25; chain and joins cost nothing
    assert table.evaluate(mixed) == (100.0 + 21.0 + 0.75, (3.0 + 10 + 8 + 2 + 2 + 8 + 1,))
    assert table.overrun_bytes(mixed) == (0.0,)
    all_data = (((0,),), ((0, 0), (0, 0)), ((0,),))
    assert table.overrun_bytes(all_data) == (6.0,)
    all_tensor = (((0,),), ((1, 1), (1, 1)), ((0,),))
    assert table.evaluate(all_tensor)[0] == 100.0 + 19.0 + 0.5 + 0.25


def test_text_of_the_small_table() -> None:
    assert str(small()).split("\n")[:6] == [
        "price_table 100.0 [3.0]",
        "row stage0 40.0",
        "block embed * 1",
        "node embed",
        "option only 1.0 [10.0] [] > 0",
        "block layer * 2",
    ]
    assert str(small()).endswith("\njoin mlp > head:0 [[0.0],[0.25]]")


@pytest.mark.parametrize(
    ("choice", "rule"),
    [
        ((((0,),), ((0, 0),), ((0,),)), r"\[block\]\[copy\]\[node\]"),
        ((((0,),), ((0, 0), (0, 2)), ((0,),)), "options 0 to 1"),
        ((((0,),), ((0, 0), (0, -1)), ((0,),)), "options 0 to 1"),
        ((((0,),), ((0, 0), (0, 0.5)), ((0,),)), "options 0 to 1"),
    ],
)
def test_a_wrong_choice_is_refused(choice: Choice, rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule):
        small().evaluate(choice)


OPTION = Option("a", 1.0, (1.0,), (0,), 0)
NODE = Node("n", (OPTION,))
EDGE = Edge("n", "m", 0, ((0.0,),))
OTHER = Node("m", (OPTION,))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: dataclasses.replace(OPTION, time_s=-1.0), "finite and >= 0"),
        (lambda: dataclasses.replace(OPTION, time_s=float("nan")), "finite and >= 0"),
        (lambda: dataclasses.replace(OPTION, time_s=True), "finite and >= 0"),
        (lambda: dataclasses.replace(OPTION, row_bytes=(float("inf"),)), "finite and >= 0"),
        (lambda: dataclasses.replace(OPTION, row_bytes=[1.0]), "are tuples"),
        (lambda: dataclasses.replace(OPTION, output_layout=-1), "int >= 0"),
        (lambda: dataclasses.replace(OPTION, label=""), "non-empty"),
        (lambda: Node("n", ()), "no option"),
        (lambda: Node("n", (OPTION, dataclasses.replace(OPTION, row_bytes=()))), "all rows"),
        (lambda: Edge("n", "m", -1, ((0.0,),)), "int >= 0"),
        (lambda: Edge("n", "m", 0, ()), "at least one"),
        (lambda: Edge("n", "m", 0, ((0.0,), (0.0, 1.0))), "equally many"),
        (lambda: Edge("n", "m", 0, [[0.0]]), "tuple of tuples"),
        (lambda: Edge("n", "m", 0, ((float("inf"),),)), "finite and >= 0"),
        (lambda: Block("b", 0, (NODE,)), "int >= 1"),
        (lambda: Block("b", 1, ()), "at least one node"),
        (lambda: Block("b", 1, (NODE, NODE)), "its own name"),
        (lambda: Block("b", 1, (OTHER, NODE), (EDGE,)), "leads back"),
        (lambda: Block("b", 1, (NODE,), (), Edge("n", "x", 0, ((0.0,),))), "no node"),
        (lambda: Block("b", 1, (NODE, OTHER), (Edge("n", "m", 1, ((0.0,),)),)), "1 slots"),
        (lambda: Block("b", 1, (NODE, OTHER), (EDGE, EDGE)), "fed twice"),
        (lambda: Block("b", 1, (NODE, OTHER), (EDGE,), EDGE), "fed twice"),
        (
            lambda: Block("b", 1, (NODE, Node("m", (Option("a", 1.0, (1.0,), (1,), 0),))), (EDGE,)),
            "every pair",
        ),
        (
            lambda: Block("b", 1, (NODE, Node("m", (Option("a", 1.0, (), (0,), 0),)))),
            "all rows to all",
        ),
        (lambda: PriceTable(()), "at least one block"),
        (lambda: PriceTable((Block("b", 1, (NODE,)),)), "one number per row"),
        (lambda: dataclasses.replace(small(), joins=()), "pair of neighbours"),
        (lambda: dataclasses.replace(small(), fixed_row_bytes=()), "one number per row"),
        (lambda: dataclasses.replace(small(), fixed_time_s=-1.0), "finite and >= 0"),
        (lambda: dataclasses.replace(small(), blocks=small().blocks[:1] * 3), "its own name"),
        (
            lambda: dataclasses.replace(
                small(), joins=(Edge("embed", "mlp", 0, ((0.0, 0.0),)), None)
            ),
            "its own slot",
        ),
    ],
)
def test_illegal_values_are_refused_in_one_line(make, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValueError, match=rule) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_every_broken_text_is_a_parse_error() -> None:
    text = str(small())
    lines = text.split("\n")
    broken = ["", "price_table", text.replace("layer * 2", "layer * 0"), None, 3]
    broken += ["\n".join(lines[:place] + lines[place + 1 :]) for place in (0, 1, 2, 3, 4)]
    broken += [text.replace(" > ", " < "), text.replace("chain", "edge"), text + "\nrow x 1.0"]
    broken += [text.replace("100.0", "1e999"), text.replace("4.0", "4_0.0")]
    for each in broken:
        with pytest.raises(ParseError) as caught:
            PriceTable.parse(each)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_arrays_of_unequal_lengths_are_refused() -> None:
    arrays = NodeArrays(np.zeros(2), np.zeros((2, 0)), np.zeros((2, 0), np.int64), np.zeros(1))
    with pytest.raises(InvalidValueError, match="every option"):
        Node.from_arrays("n", ["a", "b"], arrays=arrays)
