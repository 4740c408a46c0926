"""Whether predictions stand in the order of measurements."""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import StatisticsError, correlation
from typing import Final

APART: Final = 1.05
"""Pairs nearer than 5 % are noise (vendor releases of one plan differ by that much)."""


def in_order(pairs: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Of (predicted, measured): pairs measured APART, and those of them in the same order."""
    apart = [(a, b) for a, b in combinations(pairs, 2) if max(a[1], b[1]) > APART * min(a[1], b[1])]
    return len(apart), sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in apart)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, ties at their mean; nan where one side is constant."""
    ranks = [
        [sum(w < v for w in values) + sum(w == v for w in values) / 2 for v in values]
        for values in (first, second)
    ]
    try:
        return correlation(*ranks)
    except StatisticsError:
        return math.nan
