"""Bytes that every operator keeps alive for the backward: eager PyTorch's autograd on CPU.

The rules (ir/saved_rules.py) say which operands, results and extra tensors autograd saves for each
kind; the memory of a tensor is that of its storage, so a saved view keeps its whole base. A storage
counts once, at the first operator that saves it; parameters and constants do not count, they stay
anyway. The sum over the operators is what `torch.autograd.graph.saved_tensors_hooks` sees
(tests/ir/test_saved_bytes.py), for batches and lengths of at least 2.
"""

from dataclasses import replace

import sympy

from shardwise.ir.flops import nbytes
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.saved_rules import saved_items
from shardwise.ir.saved_tracker import Extra, Tracker


def annotated(graph: OperatorGraph) -> OperatorGraph:
    """The graph with the saved bytes of every operator filled in."""
    tracker = Tracker(graph)
    counted: set[str] = set()
    operators = []
    for operator in graph.operators:
        tracker.lay_out(operator)
        saved = _newly_saved(operator, tracker, counted)
        operators.append(replace(operator, saved_bytes=saved))
    return replace(graph, operators=tuple(operators))


def _newly_saved(operator: Operator, tracker: Tracker, counted: set[str]) -> sympy.Expr:
    """Bytes of the storages that this operator is the first to keep alive."""
    if not tracker.needs_backward(operator):
        return sympy.S.Zero
    total = sympy.S.Zero
    for item in saved_items(tracker, operator):
        if isinstance(item, Extra):
            total += nbytes(item.spec)
            continue
        storage = tracker.places[item].storage
        if storage not in counted and storage in tracker.storages:
            counted.add(storage)
            total += tracker.storages[storage]
    return total
