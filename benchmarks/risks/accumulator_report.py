"""Tables of the accumulator experiment, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from benchmarks.risks.accumulator_costs import Comparison
from benchmarks.risks.accumulator_experiment import Case, Outcome
from benchmarks.risks.accumulator_launch import RankResult

Rows = list[tuple[Case, tuple[Outcome, ...]]]
"""Cases with the outcome of every rank."""

SHORT = {
    "all_reduce": "ar",
    "reduce_scatter": "rs",
    "all_gather": "ag",
    "all_to_all": "a2a",
}


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def worst(ranks: tuple[Outcome, ...], name: str) -> float:
    """Largest value of an outcome's field over the ranks."""
    return max(float(getattr(outcome, name)) for outcome in ranks)


def is_as_predicted(ranks: tuple[Outcome, ...]) -> bool:
    """Every rank counted, in every step, switched and grouped, exactly the closed form."""
    return all(o.measured == o.predicted and o.grouped == o.predicted for o in ranks)


def replicas_agree(ranks: tuple[Outcome, ...]) -> bool:
    """Ranks that hold the same part of a master hold the same bits."""
    seen: dict[tuple[str, int, int], str] = {}
    return all(
        seen.setdefault((name, start, stop), digest) == digest
        for outcome in ranks
        for name, start, stop, digest in outcome.masters
    )


def bytes_text(steps: Iterable[Counter[tuple[str, str]]], purpose: str) -> str:
    """Sum over steps, by collective: `ar 3392 + ag 128`."""
    total: Counter[str] = Counter()
    for step in steps:
        for (what, kind), count in step.items():
            total[kind] += count if what == purpose else 0
    terms = [f"{SHORT[kind]} {total[kind]}" for kind in SHORT if total[kind]]
    return " + ".join(terms) or "0"


def parity_table(rows: Rows) -> str:
    """Errors and bytes of every case; rules that do the same share a row."""
    merged: dict[tuple[str, ...], list[tuple[Case, tuple[Outcome, ...]]]] = {}
    for case, ranks in rows:
        key: tuple[str, ...] = (
            str(case.mesh),
            f"{case.width} x {case.hidden}",
            case.strategy,
            bytes_text(ranks[0].measured, "gradient"),
            bytes_text(ranks[0].measured, "weight"),
            f"{worst(ranks, 'accumulator_bytes'):.0f}",
        )
        merged.setdefault(key, []).append((case, ranks))
    lines = []
    for key, group in merged.items():
        everyone = tuple(outcome for _, ranks in group for outcome in ranks)
        lines.append(
            (
                *key[:3],
                ", ".join(case.rule for case, _ in group),
                f"{worst(everyone, 'gradient_error'):.1e}",
                f"{worst(everyone, 'weight_error'):.1e}",
                key[3],
                key[4],
                "yes" if all(is_as_predicted(ranks) for _, ranks in group) else "NO",
                f"{worst(everyone, 'switch_bytes'):.0f}",
                key[5],
            )
        )
    header = (
        "mesh",
        "d x f",
        "strategy",
        "rule",
        "gradients, max rel. error",
        "weights, max rel. error",
        "gradient bytes",
        "weight bytes",
        "= formula",
        "switched - grouped",
        "accumulators, bytes per rank",
    )
    return table(header, lines)


def activation_table(rows: Rows) -> str:
    """Activation and loss bytes, which no strategy or rule changes."""
    lines: dict[tuple[str, ...], None] = {}
    for case, ranks in rows:
        activation = bytes_text(ranks[0].measured, "activation")
        loss = bytes_text(ranks[0].measured, "loss")
        size = f"{case.width} x {case.hidden}"
        key: tuple[str, ...] = (str(case.mesh), size, case.schedule, activation, loss)
        lines[key] = None
    return table(("mesh", "d x f", "steps", "activation bytes", "loss bytes"), lines)


def menu_table(rows: Rows) -> str:
    """Gradient bytes per step by set of buckets and rule."""
    lines = [
        (
            case.schedule,
            case.strategy,
            case.rule,
            f"{worst(ranks, 'gradient_error'):.1e}",
            bytes_text(ranks[0].measured[:1], "gradient"),
            "yes" if is_as_predicted(ranks) else "NO",
        )
        for case, ranks in rows
    ]
    header = ("buckets", "strategy", "rule", "max rel. error", "bytes per step", "= formula")
    return table(header, lines)


def copy_table(rows: Rows) -> str:
    """Weight bytes of each step, switched and grouped, by rule of the step copy."""
    lines = []
    for case, ranks in rows:
        steps = zip(ranks[0].measured, ranks[0].grouped, strict=True)
        cells = [f"{a['weight', 'all_gather']} / {b['weight', 'all_gather']}" for a, b in steps]
        lines.append((case.strategy, *cells, f"{worst(ranks, 'switch_bytes'):.0f}"))
    steps_header = (f"step {n + 1}, switched / grouped" for n in range(len(lines[0]) - 2))
    return table(("copy", *steps_header, "sum of differences"), lines)


def precision_table(rows: Rows) -> str:
    """Gradient error by number format."""
    lines = [
        (
            str(case.precision.accumulate).removeprefix("torch."),
            str(case.precision.reduce).removeprefix("torch."),
            case.strategy,
            case.rule,
            f"{worst(ranks, 'gradient_error'):.1e}",
        )
        for case, ranks in rows
    ]
    header = ("accumulate", "reduce", "strategy", "rule", "gradients, max rel. error")
    return table(header, lines)


def fault_table(rows: Rows) -> str:
    """Largest error that a seeded fault leaves; `none`: the strategy has no such operation."""
    strategies = list(dict.fromkeys(case.strategy for case, _ in rows))
    faults = list(dict.fromkeys(case.fault for case, _ in rows))
    cells = {
        (case.fault, case.strategy): max(
            worst(ranks, "gradient_error"), worst(ranks, "weight_error")
        )
        for case, ranks in rows
    }
    return table(
        ("fault", *strategies),
        (
            (f, *(f"{cells[f, s]:.1e}" if cells[f, s] > 1e-12 else "none" for s in strategies))
            for f in faults
        ),
    )


def pairs_table(results: Iterable[tuple[RankResult, ...]]) -> str:
    """Pairs of layouts tried, and the largest error over the ranks."""
    lines = []
    for ranks in results:
        for number, (mesh, pairs, _) in enumerate(ranks[0].pairs):
            error = max(result.pairs[number][2] for result in ranks)
            lines.append((mesh, str(pairs), f"{error:.1e}"))
    return table(("mesh", "pairs (source, target)", "max abs. error"), lines)


def cost_table(comparisons: Iterable[Comparison]) -> str:
    """How often the join moves less, the same, more."""
    lines = [
        (
            str(c.mesh),
            str(c.master),
            str(c.combinations),
            str(c.cheaper),
            str(c.equal),
            str(len(c.dearer)) + (": " + "; ".join(c.dearer) if c.dearer else ""),
        )
        for c in comparisons
    ]
    header = ("mesh", "master", "combinations", "join moves less", "the same", "more")
    return table(header, lines)
