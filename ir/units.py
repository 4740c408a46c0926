"""Units: the ordered stretches of operators that a plan cuts, repeats and recomputes.

A layer is found by structure: the first component of a module path that is a number (an element of
a list of modules) makes its path, up to there, a unit ("model.layers.0"). What stands before the
first layer is `embed`, after the last `head`; both are absent where they would be empty. What
stands between two layers belongs to the one before it, except where another list begins (the
decoder after the encoder): there it is a unit of its own, `bridge`. A model without layers is one
unit, `model`.
"""

import re
from collections.abc import Sequence
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.template import Template, Unit, group_units

_NUMBERED: Final = re.compile(r"((?:[^.]+\.)*?)(\d+)(?=\.|$)")
_SUFFIXED: Final = re.compile(r"((?:[^.]+\.)*?[^.]*?[A-Za-z_])(\d+)(?=\.|$)")


def layer_of(module_path: str) -> str:
    """The path of the layer that a module is in or is; "" outside layers."""
    found = _NUMBERED.match(module_path)
    return found.group() if found else ""


def find_units(graph: OperatorGraph) -> tuple[Unit, ...]:
    """The units of a graph, in order, tiling its operators; InvalidValueError if it has none."""
    if not graph.operators:
        raise InvalidValueError("the graph has no operators: there is nothing to plan")
    layers = [layer_of(operator.module_path) for operator in graph.operators]
    if not any(layers):
        layers = _suffixed_layers([operator.module_path for operator in graph.operators])
    if not any(layers):
        return (Unit("model", (0, len(layers))),)
    return tuple(_named(_pieces(layers), graph))


def find_templates(graph: OperatorGraph, units: tuple[Unit, ...]) -> tuple[Template, ...]:
    """Units that are the same layer, grouped (`shardwise.ir.template.group_units`)."""
    return group_units(graph, units)


def _suffixed_layers(paths: Sequence[str]) -> list[str]:
    """Layers that are attributes with a number (block1, block2), two or more of one name."""
    found = [_SUFFIXED.match(path) for path in paths]
    names = {(match.group(1), match.group(2)) for match in found if match}
    lists = [prefix for prefix, _ in names]
    return [match.group() if match and lists.count(match.group(1)) > 1 else "" for match in found]


def _pieces(layers: Sequence[str]) -> list[tuple[str, int, int]]:
    """(layer or "", start, stop): runs of operators of one layer, gaps inside a list filled."""
    ends: dict[str, tuple[int, int]] = {}
    for position, layer in enumerate(layers):
        if layer:
            ends[layer] = (ends.get(layer, (position, 0))[0], position + 1)
    pieces: list[tuple[str, int, int]] = []
    position = 0
    for layer, (first, stop) in sorted(ends.items(), key=lambda item: item[1]):
        if stop <= position:
            continue
        before = pieces[-1] if pieces else None
        first = max(first, position)
        if before is not None and first > position and _list_of(before[0]) == _list_of(layer):
            pieces[-1] = (before[0], before[1], first)
        elif first > position:
            pieces.append(("", position, first))
        pieces.append((layer, first, stop))
        position = stop
    if position < len(layers):
        pieces.append(("", position, len(layers)))
    return pieces


def _list_of(layer: str) -> str:
    return (
        layer.rpartition(".")[0]
        if layer.rpartition(".")[2].isdigit()
        else layer.rstrip("0123456789")
    )


def _named(pieces: Sequence[tuple[str, int, int]], graph: OperatorGraph) -> list[Unit]:
    units: list[Unit] = []
    taken = {layer for layer, _, _ in pieces}
    for number, (layer, start, stop) in enumerate(pieces):
        if layer:
            units.append(Unit(layer, (start, stop), layer))
            continue
        wanted = "embed" if number == 0 else "head" if number == len(pieces) - 1 else "bridge"
        name, count = wanted, 1
        while name in taken:
            count += 1
            name = f"{wanted}_{count}"
        taken.add(name)
        units.append(Unit(name, (start, stop)))
    return units
