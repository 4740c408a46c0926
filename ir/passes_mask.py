"""Attention masks that are functions of sizes alone are proven to be causal, full or a window.

Under export, Hugging Face passes a boolean [B, 1, S, S] mask to every attention. Its elements are
read as a function of the indices (ir/index_form.py), for all sizes up to the largest of the bucket
at once; nothing is concluded from samples, so a window longer than the examples is still found. A
causal mask becomes `is_causal=True`, a mask that is true everywhere goes, and every other one is
kept and named in the report with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import sympy

from shardwise.ir import index_rules_shape, index_rules_value  # noqa: F401  (fill the registry)
from shardwise.ir.argument import Ref
from shardwise.ir.expression import Size
from shardwise.ir.flops import ATTENTION as ATTENTION
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.index_form import (
    Box,
    Choice,
    Integers,
    Magnitude,
    Truth,
    UnknownForm,
    index,
    opposite,
)
from shardwise.ir.index_reader import FormReader
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument

_BLOCKED: Final = -1e4
"""Additive masks at or below this block an element: exp underflows to 0 in every float dtype."""


class MaskKind(StrEnum):
    """What a mask lets a query at position i see of the keys at positions j."""

    NONE = "none"
    CAUSAL = "causal"
    WINDOW = "window"
    BAND = "band"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MaskUse:
    """What is known of the mask of one attention operator."""

    operator: str
    kind: MaskKind
    """none: all j; causal: j <= i; window: i - window < j <= i; band: |i - j| < window."""
    window: int | None = None
    reason: str = ""
    """Why it is unknown."""

    def __str__(self) -> str:
        window = f" {self.window}" if self.window is not None else ""
        return f"{self.operator}: {self.kind}{window}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True)
class ClassifyMasks:
    """The pass; `max_sizes` are the largest sizes for which the result shall hold."""

    max_sizes: Mapping[str, int]
    name: str = "classify_masks"

    def apply(self, graph: OperatorGraph) -> tuple[OperatorGraph, tuple[MaskUse, ...]]:
        """The graph with causal and full masks gone from attention, and one report per operator."""
        ranges = {
            entry.name: (entry.low, self.max_sizes.get(entry.name, entry.high or 2**62))
            for entry in graph.symbols
        }
        reader = FormReader(graph, Box.of(ranges))
        known: dict[Ref, MaskUse] = {}
        operators, uses = [], []
        for operator in graph.operators:
            if operator.kind != ATTENTION:
                operators.append(operator)
                continue
            use = _classified(operator, reader, known)
            uses.append(use)
            operators.append(_without_mask(operator, use.kind))
        return replace(graph, operators=tuple(operators)), tuple(uses)


def _classified(operator: Operator, reader: FormReader, known: dict[Ref, MaskUse]) -> MaskUse:
    mask = argument(operator, 3, "attn_mask")
    if mask is None:
        causal = argument(operator, 5, "is_causal", False)
        return MaskUse(operator.name, MaskKind.CAUSAL if causal else MaskKind.NONE)
    assert isinstance(mask, Ref)
    if mask not in known:
        query, key = operator.args[0], operator.args[1]
        assert isinstance(query, Ref) and isinstance(key, Ref)
        square = reader.shape(query)[-2] == reader.shape(key)[-2]
        known[mask] = _kind(mask, reader, square=square)
    return replace(known[mask], operator=operator.name)


def _kind(mask: Ref, reader: FormReader, *, square: bool) -> MaskUse:
    try:
        form = reader.form(mask)
    except UnknownForm as reason:
        return MaskUse("mask", MaskKind.UNKNOWN, reason=str(reason))
    shape = reader.shape(mask)
    if isinstance(form, Choice):
        try:
            form = reader.simplified(_where_zero(form), shape)
        except UnknownForm as reason:
            return MaskUse("mask", MaskKind.UNKNOWN, reason=str(reason))
    if isinstance(form, Integers | Magnitude):
        if form.expression == 0:
            return MaskUse("mask", MaskKind.NONE)
        return MaskUse("mask", MaskKind.UNKNOWN, reason="a bias that depends on positions")
    return _of_truth(form, shape, square=square)


def _where_zero(form: Choice) -> Truth:
    """Where an additive mask lets an element through; UnknownForm if it does more than block."""
    if form.inside == 0.0 and form.outside <= _BLOCKED:
        return form.where
    if form.outside == 0.0 and form.inside <= _BLOCKED:
        return opposite(form.where)
    raise UnknownForm("an additive mask with other values")


def _of_truth(truth: Truth, shape: tuple[Size, ...], *, square: bool) -> MaskUse:
    if truth.never or len(shape) < 2:
        return MaskUse("mask", MaskKind.UNKNOWN, reason="it blocks everything")
    row, column = index(len(shape) - 2), index(len(shape) - 1)
    causal = sympy.expand(row - column)
    if not truth.atoms:
        return MaskUse("mask", MaskKind.NONE)
    rest = truth.atoms - {causal}
    if causal in truth.atoms and square:
        if not rest:
            return MaskUse("mask", MaskKind.CAUSAL)
        before = [sympy.expand(atom + causal) for atom in rest]
        if all(count.is_Integer and count >= 0 for count in before):
            return MaskUse("mask", MaskKind.WINDOW, int(min(before)) + 1)
    most = sympy.expand(sum(truth.atoms)) / 2
    if square and most.is_Integer and truth.atoms == {most + causal, most - causal}:
        return MaskUse("mask", MaskKind.BAND, int(most) + 1)
    conditions = ", ".join(sorted(f"{atom} >= 0" for atom in truth.atoms))
    return MaskUse("mask", MaskKind.UNKNOWN, reason=conditions)


def _without_mask(operator: Operator, kind: MaskKind) -> Operator:
    if argument(operator, 3, "attn_mask") is None or kind not in (MaskKind.CAUSAL, MaskKind.NONE):
        return operator
    query, key, value = operator.args[:3]
    kwargs = tuple(
        (k, v) for k, v in operator.kwargs if k not in ("attn_mask", "dropout_p", "is_causal")
    )
    return replace(
        operator,
        args=(
            query, key, value, None,
            argument(operator, 4, "dropout_p", 0.0), kind is MaskKind.CAUSAL,
        ),
        kwargs=kwargs,
    )  # fmt: skip
