"""The text form of an OperatorGraph: printed and parsed back whole, and digested.

    graph 1
    symbol S in 2:4096
    input input_ids int64[2, S]
    parameter embed.weight float32[256, 64] alias=head.weight
    constant inv_freq float32[32]
    operator embedding = aten.embedding.default(%embed.weight, %input_ids) -> float32[2, S, 64]
    update bn.running_mean = %add
    output %embedding

One line per item, printable ASCII; the word in front says what the rest is the text form of.
Items of one kind keep their order; lines of different kinds may be mixed when parsed.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

from shardwise.ir.argument import scan_ref
from shardwise.ir.errors import ParseError
from shardwise.ir.graph import Constant, GraphInput, OperatorGraph, Parameter, SymbolRange
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.scanner import Scanner, made, quote_name, shown

VERSION_LINE: Final = "graph 1"


def format_graph(graph: OperatorGraph) -> str:
    """Text of a graph, lines joined by a newline, none at the end."""
    return "\n".join(
        [
            VERSION_LINE,
            *(f"symbol {symbol}" for symbol in graph.symbols),
            *(f"input {item}" for item in graph.inputs),
            *(f"parameter {parameter}" for parameter in graph.parameters),
            *(f"constant {constant}" for constant in graph.constants),
            *(f"operator {operator}" for operator in graph.operators),
            *(f"update {quote_name(name)} = {ref}" for name, ref in graph.updates),
            *(f"output {ref}" for ref in graph.outputs),
        ]
    )


def parse_graph(text: str) -> OperatorGraph:
    """The graph that prints as `text` (a newline at the end is allowed).

    Raises ParseError that names the line, or says which invariant of the graph the whole
    breaks.
    """
    if not isinstance(text, str):
        raise ParseError(f"cannot parse {shown(text)} as a graph: expected its text")
    lines = text.removesuffix("\n").split("\n")
    if lines[0] != VERSION_LINE:
        raise ParseError(
            f"cannot parse a graph that begins with {shown(lines[0])}: its first line is "
            f"{VERSION_LINE!r}"
        )
    items: dict[str, list[Any]] = {word: [] for word in _LINES}
    for number, line in enumerate(lines[1:], 2):
        word, _, rest = line.partition(" ")
        if word not in _LINES:
            raise ParseError(
                f"line {number} of the graph is {shown(line)}: a line begins with one of "
                f"{', '.join(_LINES)}"
            )
        try:
            items[word].append(_LINES[word](rest))
        except ParseError as error:
            raise ParseError(f"line {number} of the graph: {error}") from None
    return made(
        VERSION_LINE,
        OperatorGraph,
        inputs=tuple(items["input"]),
        parameters=tuple(items["parameter"]),
        constants=tuple(items["constant"]),
        operators=tuple(items["operator"]),
        outputs=tuple(items["output"]),
        symbols=tuple(items["symbol"]),
        updates=tuple(items["update"]),
    )


def _parse_update(text: str) -> tuple[str, Ref]:
    scanner = Scanner(text, "'bn.running_mean = %add'")
    name = scanner.name()
    scanner.expect(" = ")
    ref = scan_ref(scanner)
    scanner.end()
    return name, ref


_LINES: Final[dict[str, Callable[[str], object]]] = {
    "symbol": SymbolRange.parse,
    "input": GraphInput.parse,
    "parameter": Parameter.parse,
    "constant": Constant.parse,
    "operator": Operator.parse,
    "update": _parse_update,
    "output": Ref.parse,
}


def graph_digest(graph: OperatorGraph) -> str:
    """SHA-256 (hex) of the text without sources, costs and ranges of symbols, unstable names
    numbered: a model is the same for however long documents it was traced.

    Those are the names of operators and of constants outside the state dict.
    A number is written `@3`, which no name is: names with `@` are quoted.
    """
    numbers = {
        constant.name: f"@c{index}"
        for index, constant in enumerate(graph.constants)
        if not constant.persistent
    }
    numbers |= {operator.name: f"@{index}" for index, operator in enumerate(graph.operators)}

    def name_text(name: str) -> str:
        return numbers.get(name) or quote_name(name)

    def ref_text(ref: Ref) -> str:
        return f"%{name_text(ref.name)}:{ref.index}"

    lines = [
        VERSION_LINE,
        *(f"symbol {symbol.name}" for symbol in graph.symbols),
        *(f"input {item}" for item in graph.inputs),
        *(f"parameter {parameter}" for parameter in graph.parameters),
        *(f"constant {name_text(constant.name)} {constant.spec}" for constant in graph.constants),
        *(
            f"operator {operator.call_text(ref_text)} -> "
            f"{', '.join(map(str, operator.outputs))} "
            f"module={quote_name(operator.module_path)}"
            for operator in graph.operators
        ),
        *(f"update {name_text(name)} = {ref_text(ref)}" for name, ref in graph.updates),
        *(f"output {ref_text(ref)}" for ref in graph.outputs),
    ]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()
