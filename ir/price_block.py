"""Block of a price table: a template of nodes and edges, chained a number of times."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.price_node import Edge, Node
from shardwise.ir.scanner import Scanner, check_name, quote_name, shown

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Block:
    """A template of nodes, chained `count` times.

    Names are unique, an edge leads from a node to a later one, an input slot is fed once at
    most (by an edge or the chain), and every matrix covers the layout ids of its two ends.
    Text: `block layer * 32`, then its nodes, edges and chain. Raises InvalidValueError.
    """

    name: str
    count: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    chain: Edge | None = None
    """From a node (the last) of one copy to a node (the first) of the next one."""

    def __post_init__(self) -> None:
        check_name(self.name, "a block")
        where = f"block {shown(self.name)}"
        if type(self.count) is not int or self.count < 1:
            raise InvalidValueError(f"{where} has count {shown(self.count)}: give an int >= 1")
        places = {node.name: place for place, node in enumerate(self.nodes)}
        if not self.nodes or len(places) != len(self.nodes):
            raise InvalidValueError(
                f"{where} has {len(self.nodes)} nodes with {len(places)} names: give at "
                "least one node, and each its own name"
            )
        if len({node.row_count for node in self.nodes}) != 1:
            raise InvalidValueError(
                f"{where} has nodes with different numbers of memory rows: give all rows to all"
            )
        fed: set[tuple[str, int]] = set()
        for edge in (*self.edges, *present(self.chain)):
            check_edge(edge, self, target=self)
            if edge is not self.chain and places[edge.source] >= places[edge.target]:
                raise InvalidValueError(
                    f"{where}: edge {shown(edge.source)} > {shown(edge.target)} leads back; "
                    "list the nodes so that each comes after those it reads"
                )
            if (edge.target, edge.slot) in fed:
                raise InvalidValueError(
                    f"{where}: slot {edge.slot} of {shown(edge.target)} is fed twice; give "
                    "every value its own slot"
                )
            fed.add((edge.target, edge.slot))

    def __str__(self) -> str:
        return "\n".join(
            (
                f"block {quote_name(self.name)} * {self.count}",
                *map(str, self.nodes),
                *map(str, self.edges),
                *(edge.text("chain") for edge in present(self.chain)),
            )
        )

    @classmethod
    def parse(cls, text: str) -> "Block":
        """The block that prints as `text`; raises ParseError."""
        head, *lines = text.split("\n") if type(text) is str else [text]
        scanner = Scanner(head, "'block layer * 32' and lines of nodes, edges and a chain")
        scanner.expect("block ")
        name = scanner.name()
        scanner.expect(" * ")
        count = scanner.integer()
        scanner.end()
        nodes, lines = split_before(lines, ("node",), until=("edge", "chain"))
        chained = [Edge.parse(line, "chain") for line in lines if line.startswith("chain ")]
        edges = [Edge.parse(line) for line in lines if not line.startswith("chain ")]
        if len(chained) > 1 or (chained and not lines[-1].startswith("chain ")):
            raise ParseError(f"block {shown(name)}: expected one chain at most, as its last line")
        return parsed(
            lambda: cls(
                name,
                count,
                tuple(map(Node.parse, nodes)),
                tuple(edges),
                chained[0] if chained else None,
            )
        )

    def place(self, name: str) -> int:
        """Index of the node of that name; raises InvalidValueError where there is none."""
        for place, node in enumerate(self.nodes):
            if node.name == name:
                return place
        raise InvalidValueError(
            f"block {shown(self.name)} has no node {shown(name)}: use one of "
            f"{shown([node.name for node in self.nodes])}"
        )


def present(edge: Edge | None) -> tuple[Edge, ...]:
    """The edge, if there is one."""
    return () if edge is None else (edge,)


def check_edge(edge: Edge, block: Block, *, target: Block) -> None:
    """Raise InvalidValueError unless `edge` fits its two nodes, in `block` and in `target`.

    Both nodes and the slot exist, and the matrix has a cost for every pair of layout ids.
    """
    reader = target.nodes[target.place(edge.target)]
    where = f"edge {shown(edge.source)} > {shown(edge.target)}"
    if edge.slot >= reader.slot_count:
        raise InvalidValueError(
            f"{where} feeds slot {edge.slot} of a node with {reader.slot_count} slots: count from 0"
        )
    wanted = (
        block.nodes[block.place(edge.source)].output_layout_count(),
        reader.input_layout_count(edge.slot),
    )
    given = (len(edge.cost_s), len(edge.cost_s[0]))
    if given[0] < wanted[0] or given[1] < wanted[1]:
        raise InvalidValueError(
            f"{where} has costs for {given} layouts, its nodes use {wanted}: give a cost for "
            "every pair"
        )


def parsed(make: Callable[[], _Value]) -> _Value:
    """`make()`; an InvalidValueError becomes the ParseError of the text it was made from."""
    try:
        return make()
    except InvalidValueError as error:
        raise ParseError(str(error)) from None


def split_before(
    lines: list[str], words: tuple[str, ...], *, until: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Pieces of text that each begin with one of `words`, and the lines from `until` on.

    Raises ParseError where the first line begins with none of them.
    """
    pieces: list[list[str]] = []
    for place, line in enumerate(lines):
        word = line.split(" ", 1)[0]
        if word in until:
            return ["\n".join(piece) for piece in pieces], lines[place:]
        if word in words:
            pieces.append([line])
        elif pieces:
            pieces[-1].append(line)
        else:
            raise ParseError(f"cannot parse line {shown(line)}: expected one of {words + until}")
    return ["\n".join(piece) for piece in pieces], []
