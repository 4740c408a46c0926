"""PriceTable: the whole planning problem of one bucket as numbers, from the planner to solvers.

A table is a row of blocks; a block is a template of nodes and edges that is chained `count`
times (the identical layers of a model). Every copy of every node takes one option, copies may
differ:

    minimise    fixed_time_s + sum of option times + sum of edge, chain and join costs
    subject to  fixed_row_bytes[r] + sum of option bytes <= budget_bytes[r] for every row r

`evaluate` and `overrun_bytes` are that statement, plainly; every solver is checked with them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.price_block import Block, check_edge, parsed, split_before
from shardwise.ir.price_node import Edge, check_amounts, list_text, scan_number, scan_numbers
from shardwise.ir.scanner import Scanner, check_name, quote_name, shown

Choice = tuple[tuple[tuple[int, ...], ...], ...]
"""Option index by [block][copy][node]."""

_TABLE_FORM: Final = "'price_table 0.5 [1000.0]' and lines of rows, blocks and joins"
_NO_JOIN: Final = "join none"


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A budget that all decisions share. Text: `row stage0 80000000000.0`."""

    name: str
    budget_bytes: float
    """Bytes per rank that the row may sum to."""

    def __post_init__(self) -> None:
        check_name(self.name, "a memory row")
        check_amounts((self.budget_bytes,), f"memory row {shown(self.name)}")

    def __str__(self) -> str:
        return f"row {quote_name(self.name)} {float(self.budget_bytes)!r}"

    @classmethod
    def parse(cls, text: str) -> "MemoryRow":
        """The row that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'row stage0 80000000000.0'")
        scanner.expect("row ")
        name = scanner.name()
        scanner.expect(" ")
        budget_bytes = scan_number(scanner)
        scanner.end()
        return parsed(lambda: cls(name, budget_bytes))


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Blocks in a row, memory rows, and what no choice changes. Text: a line per item.

    Names of blocks and of rows are unique; every option has one number per row; `joins[i]`
    leads from a node of the last copy of block i to one of the first copy of block i + 1, at a
    slot that no edge of that block feeds. Raises InvalidValueError.
    """

    blocks: tuple[Block, ...]
    joins: tuple[Edge | None, ...] = ()
    """Between consecutive blocks: one less than there are blocks; None where nothing flows."""
    rows: tuple[MemoryRow, ...] = ()
    fixed_time_s: float = 0.0
    fixed_row_bytes: tuple[float, ...] = ()
    """Bytes of each memory row that no choice changes."""

    def __post_init__(self) -> None:
        for what, names in (
            ("blocks", [block.name for block in self.blocks]),
            ("memory rows", [row.name for row in self.rows]),
        ):
            if len(set(names)) != len(names):
                raise InvalidValueError(f"{what} {shown(names)}: give each its own name")
        if not self.blocks or len(self.joins) != len(self.blocks) - 1:
            raise InvalidValueError(
                f"{len(self.joins)} joins for {len(self.blocks)} blocks: give at least one "
                "block, and an edge or None for each pair of neighbours"
            )
        counts = {
            len(self.fixed_row_bytes),
            *(block.nodes[0].row_count for block in self.blocks),
        }
        if counts != {len(self.rows)}:
            raise InvalidValueError(
                f"{len(self.rows)} memory rows, but fixed bytes or options of {shown(counts)}: "
                "give one number per row to each"
            )
        check_amounts((self.fixed_time_s, *self.fixed_row_bytes), "the fixed part of a table")
        for place, join in enumerate(self.joins):
            if join is None:
                continue
            block, following = self.blocks[place : place + 2]
            check_edge(join, block, target=following)
            if any((join.target, join.slot) == (e.target, e.slot) for e in following.edges):
                raise InvalidValueError(
                    f"join {place} feeds slot {join.slot} of {shown(join.target)}, which an "
                    f"edge of block {shown(following.name)} feeds: give the value its own slot"
                )

    def __str__(self) -> str:
        joins = (join.text("join") if join is not None else _NO_JOIN for join in self.joins)
        head = f"price_table {float(self.fixed_time_s)!r} {list_text(self.fixed_row_bytes)}"
        return "\n".join((head, *map(str, self.rows), *map(str, self.blocks), *joins))

    @classmethod
    def parse(cls, text: str) -> "PriceTable":
        """The table that prints as `text`; raises ParseError."""
        head, *lines = text.split("\n") if type(text) is str else [text]
        scanner = Scanner(head, _TABLE_FORM)
        scanner.expect("price_table ")
        fixed_time_s = scan_number(scanner)
        scanner.expect(" ")
        fixed_row_bytes = scan_numbers(scanner)
        scanner.end()
        rows, lines = split_before(lines, ("row",), until=("block",))
        blocks, lines = split_before(lines, ("block",), until=("join",))
        joins = (None if line == _NO_JOIN else Edge.parse(line, "join") for line in lines)
        return parsed(
            lambda: cls(
                tuple(map(Block.parse, blocks)),
                tuple(joins),
                tuple(map(MemoryRow.parse, rows)),
                fixed_time_s,
                fixed_row_bytes,
            )
        )

    def evaluate(self, choice: Choice) -> tuple[float, tuple[float, ...]]:
        """Seconds and bytes of each memory row under `choice`; the reference of all solvers.

        Sums are exact before one rounding (math.fsum). Raises InvalidValueError where the
        choice does not name one option for every node of every copy.
        """
        self.check_choice(choice)
        times = [self.fixed_time_s]
        bytes_by_row = [[fixed] for fixed in self.fixed_row_bytes]
        for block, copies in zip(self.blocks, choice, strict=True):
            for copy in copies:
                for node, index in zip(block.nodes, copy, strict=True):
                    times.append(node.options[index].time_s)
                    for row, amount in zip(
                        bytes_by_row, node.options[index].row_bytes, strict=True
                    ):
                        row.append(amount)
        times.extend(self._edge_costs(choice))
        return math.fsum(times), tuple(map(math.fsum, bytes_by_row))

    def overrun_bytes(self, choice: Choice) -> tuple[float, ...]:
        """Bytes by which each memory row exceeds its budget under `choice`; 0 where it fits."""
        _, used = self.evaluate(choice)
        return tuple(
            max(0.0, amount - row.budget_bytes) for amount, row in zip(used, self.rows, strict=True)
        )

    def check_choice(self, choice: Choice) -> None:
        """Raise InvalidValueError unless `choice` has one option per node, copy and block."""
        shape = tuple(tuple(map(len, copies)) for copies in choice)
        wanted = tuple((len(block.nodes),) * block.count for block in self.blocks)
        if shape != wanted:
            raise InvalidValueError(
                f"a choice of shape {shown(shape)} for a table of {shown(wanted)}: give "
                "[block][copy][node]"
            )
        for block, copies in zip(self.blocks, choice, strict=True):
            for copy in copies:
                for node, index in zip(block.nodes, copy, strict=True):
                    if type(index) is not int or not 0 <= index < len(node.options):
                        raise InvalidValueError(
                            f"option {shown(index)} of node {shown(node.name)}: it has "
                            f"options 0 to {len(node.options) - 1}; choose one of them"
                        )

    def _edge_costs(self, choice: Choice) -> Iterator[float]:
        for block, copies in zip(self.blocks, choice, strict=True):
            for copy in copies:
                for edge in block.edges:
                    yield _cost(edge, block, copy, target=block, target_copy=copy)
            if block.chain is not None:
                for copy, following in pairwise(copies):
                    yield _cost(block.chain, block, copy, target=block, target_copy=following)
        for place, join in enumerate(self.joins):
            if join is not None:
                yield _cost(
                    join,
                    self.blocks[place],
                    choice[place][-1],
                    target=self.blocks[place + 1],
                    target_copy=choice[place + 1][0],
                )


def _cost(
    edge: Edge,
    block: Block,
    copy: tuple[int, ...],
    *,
    target: Block,
    target_copy: tuple[int, ...],
) -> float:
    """Seconds of one edge between two copies with these option indices by node."""
    source_place = block.place(edge.source)
    target_place = target.place(edge.target)
    output = block.nodes[source_place].options[copy[source_place]].output_layout
    reader = target.nodes[target_place].options[target_copy[target_place]]
    return edge.cost_s[output][reader.input_layouts[edge.slot]]
