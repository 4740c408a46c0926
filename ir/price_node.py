"""The parts of a price table: options of a node, and edges that cost by layout pair.

A node is whatever takes one decision (an operator, a region, a parameter); a solver sees
numbers only. Layouts are small ints: ids of the distinct layouts of one value at one end of an
edge, so that an edge is a matrix over (output layout of the source, input layout of the
target) however many options share them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.prices import parse_number
from shardwise.ir.scanner import Scanner, check_name, quote_name, shown

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_NUMBER: Final = re.compile(r"[0-9][0-9.e+-]*", re.ASCII)
_OPTION_FORM: Final = "'option tensor 0.001 [5.0] [0,1] > 2'"
_EDGE_FORM: Final = "'edge attention > mlp:0 [[0.0,1.0],[2.0,0.0]]'"
_EDGE_WORDS: Final = ("edge", "chain", "join")


class NodeArrays(NamedTuple):
    """The options of a node as arrays; the first dim counts options."""

    time_s: Float64Array
    """[options]"""
    row_bytes: Float64Array
    """[options, memory rows]"""
    input_layouts: Int64Array
    """[options, slots]"""
    output_layout: Int64Array
    """[options]"""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to compute a node. Text: `option tensor 0.001 [5.0] [0,1] > 2`.

    Times and bytes are finite and >= 0, layout ids >= 0. Raises InvalidValueError.
    """

    label: str
    """What it stands for; read by people only."""
    time_s: float
    """Seconds, of everything that no edge pays."""
    row_bytes: tuple[float, ...]
    """Bytes that it adds to each memory row of the table, in the order of the rows."""
    input_layouts: tuple[int, ...]
    """Layout id at each input slot of the node."""
    output_layout: int
    """Layout id of its output."""

    def __post_init__(self) -> None:
        check_name(self.label, "an option")
        if type(self.row_bytes) is not tuple or type(self.input_layouts) is not tuple:
            raise InvalidValueError(
                f"option {shown(self.label)}: row_bytes and input_layouts are tuples; convert them"
            )
        check_amounts((self.time_s, *self.row_bytes), f"option {shown(self.label)}")
        for layout in (*self.input_layouts, self.output_layout):
            _check_index(layout, f"layout of option {shown(self.label)}")

    def __str__(self) -> str:
        return (
            f"option {quote_name(self.label)} {float(self.time_s)!r} "
            f"{list_text(self.row_bytes)} [{','.join(map(str, self.input_layouts))}] > "
            f"{self.output_layout}"
        )

    @classmethod
    def parse(cls, text: str) -> "Option":
        """The option that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _OPTION_FORM)
        scanner.expect("option ")
        label = scanner.name()
        scanner.expect(" ")
        time_s = scan_number(scanner)
        scanner.expect(" ")
        row_bytes = scan_numbers(scanner)
        scanner.expect(" [")
        layouts: list[int] = []
        while not scanner.take("]"):
            if layouts:
                scanner.expect(",")
            layouts.append(scanner.integer())
        scanner.expect(" > ")
        output = scanner.integer()
        scanner.end()
        try:
            return cls(label, time_s, row_bytes, tuple(layouts), output)
        except InvalidValueError as error:
            raise ParseError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Node:
    """A decision: exactly one of its options. Text: `node name`, then a line per option.

    At least one option; all of them have equally many memory rows and input slots. Raises
    InvalidValueError.
    """

    name: str
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        check_name(self.name, "a node")
        if type(self.options) is not tuple or not self.options:
            raise InvalidValueError(
                f"node {shown(self.name)} has no option: give a tuple of at least one"
            )
        shapes = {(len(o.row_bytes), len(o.input_layouts)) for o in self.options}
        if len(shapes) > 1:
            raise InvalidValueError(
                f"node {shown(self.name)} has options with {shown(sorted(shapes))} memory rows "
                "and input slots: give every option all rows and all slots"
            )

    def __str__(self) -> str:
        return "\n".join((f"node {quote_name(self.name)}", *map(str, self.options)))

    @classmethod
    def parse(cls, text: str) -> "Node":
        """The node that prints as `text`; raises ParseError."""
        head, *lines = text.split("\n") if type(text) is str else [text]
        scanner = Scanner(head, "'node attention' and a line per option")
        scanner.expect("node ")
        name = scanner.name()
        scanner.end()
        options = tuple(map(Option.parse, lines))
        try:
            return cls(name, options)
        except InvalidValueError as error:
            raise ParseError(str(error)) from None

    @property
    def slot_count(self) -> int:
        """Number of input slots."""
        return len(self.options[0].input_layouts)

    @property
    def row_count(self) -> int:
        """Number of memory rows."""
        return len(self.options[0].row_bytes)

    def output_layout_count(self) -> int:
        """One more than the largest output layout id."""
        return 1 + max(option.output_layout for option in self.options)

    def input_layout_count(self, slot: int) -> int:
        """One more than the largest input layout id at `slot`."""
        return 1 + max(option.input_layouts[slot] for option in self.options)

    def arrays(self) -> NodeArrays:
        """The numbers of all options, in order."""
        return NodeArrays(
            np.array([o.time_s for o in self.options], np.float64),
            np.array([o.row_bytes for o in self.options], np.float64),
            np.array([o.input_layouts for o in self.options], np.int64),
            np.array([o.output_layout for o in self.options], np.int64),
        )

    @classmethod
    def from_arrays(cls, name: str, labels: Sequence[str], *, arrays: NodeArrays) -> "Node":
        """The node whose `arrays()` are these; raises InvalidValueError if lengths differ."""
        columns = (labels, *(array.tolist() for array in arrays))
        if len(set(map(len, columns))) != 1:
            raise InvalidValueError(
                f"node {shown(name)}: labels and arrays have {shown([*map(len, columns)])} "
                "options; give every option to each"
            )
        return cls(
            name,
            tuple(
                Option(label, time_s, tuple(rows), tuple(inputs), output)
                for label, time_s, rows, inputs, output in zip(*columns, strict=True)
            ),
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that flows between two nodes, priced by the layouts at its two ends.

    Text: `edge attention > mlp:0 [[0.0,1.0],[2.0,0.0]]`. The matrix is rectangular, not empty,
    of finite seconds >= 0: a redistribution always exists. Raises InvalidValueError.
    """

    source: str
    """Name of the node whose output it is."""
    target: str
    """Name of the node that reads it."""
    slot: int
    """Input slot of the target."""
    cost_s: tuple[tuple[float, ...], ...]
    """Seconds over (output layout of the source, input layout of the target)."""

    def __post_init__(self) -> None:
        check_name(self.source, "a source of an edge")
        check_name(self.target, "a target of an edge")
        where = f"edge {shown(self.source)} > {shown(self.target)}"
        _check_index(self.slot, f"slot of {where}")
        if any(type(part) is not tuple for part in (self.cost_s, *self.cost_s)):
            raise InvalidValueError(f"{where}: cost_s is a tuple of tuples; convert it")
        if not self.cost_s or len(set(map(len, self.cost_s))) != 1 or not self.cost_s[0]:
            raise InvalidValueError(
                f"{where} has rows of {shown([*map(len, self.cost_s)])} costs: give equally "
                "many, at least one, for each output layout"
            )
        for row in self.cost_s:
            check_amounts(row, where)

    def __str__(self) -> str:
        return self.text("edge")

    def text(self, word: str) -> str:
        """Its line in a table, where `word` (edge, chain, join) says what it connects."""
        rows = ",".join(map(list_text, self.cost_s))
        return f"{word} {quote_name(self.source)} > {quote_name(self.target)}:{self.slot} [{rows}]"

    @classmethod
    def parse(cls, text: str, word: str = "edge") -> "Edge":
        """The edge that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _EDGE_FORM)
        scanner.expect(f"{word} ")
        source = scanner.name()
        scanner.expect(" > ")
        target = scanner.name()
        scanner.expect(":")
        slot = scanner.integer()
        scanner.expect(" [")
        rows: list[tuple[float, ...]] = []
        while not scanner.take("]"):
            if rows:
                scanner.expect(",")
            rows.append(scan_numbers(scanner))
        scanner.end()
        try:
            return cls(source, target, slot, tuple(rows))
        except InvalidValueError as error:
            raise ParseError(str(error)) from None

    def array(self) -> Float64Array:
        """Seconds, [output layouts, input layouts]."""
        return np.array(self.cost_s, np.float64)

    @classmethod
    def from_array(cls, source: str, target: str, *, slot: int, cost_s: Float64Array) -> "Edge":
        """The edge whose `array()` is `cost_s`."""
        return cls(source, target, slot, tuple(map(tuple, cost_s.tolist())))


def check_amounts(values: Iterable[object], what: str) -> None:
    """Raise InvalidValueError unless all are finite numbers >= 0 (seconds or bytes)."""
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:  # type: ignore[operator]
            raise InvalidValueError(
                f"{what} has the amount {shown(value)}: seconds and bytes are finite and >= 0; "
                "correct it"
            )


def list_text(values: Iterable[float]) -> str:
    """`[1.0,2.5]`: floats that parse back exactly."""
    return f"[{','.join(repr(float(value)) for value in values)}]"


def scan_number(scanner: Scanner) -> float:
    """A non-negative float at the scanner."""
    return parse_number(scanner.need(_NUMBER, "a number >= 0"))


def scan_numbers(scanner: Scanner) -> tuple[float, ...]:
    """`[1.0,2.5]` at the scanner."""
    scanner.expect("[")
    numbers: list[float] = []
    while not scanner.take("]"):
        if numbers:
            scanner.expect(",")
        numbers.append(scan_number(scanner))
    return tuple(numbers)


def _check_index(value: object, what: str) -> None:
    if type(value) is not int or value < 0:
        raise InvalidValueError(f"{what} is {shown(value)}: it must be an int >= 0; count from 0")
