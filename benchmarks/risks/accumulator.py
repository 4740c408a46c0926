"""One accumulator through a bucket switch: does the design's rule hold, and what does it move?

    python -m benchmarks.risks.accumulator --ranks 2
    python -m benchmarks.risks.accumulator --write docs/design/accumulator.md

Two linears, a norm and two biases are trained for five steps. The slots of a step run
different buckets: data parallel, Megatron with and without sequence parallelism, Ulysses,
mixtures, replicated work; every parameter has one master, one accumulator and one copy
lifetime for all of them. Everything is compared with one process in float64, every collective
is counted and compared with closed forms. The finding is docs/design/accumulator.md; `--write`
renews its tables.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from itertools import product
from pathlib import Path

import torch

from benchmarks.risks import accumulator_report as report
from benchmarks.risks.accumulator_collectives import FAULTS
from benchmarks.risks.accumulator_costs import compare
from benchmarks.risks.accumulator_experiment import Case
from benchmarks.risks.accumulator_launch import RankResult, launch
from benchmarks.risks.accumulator_layout import Layout, Mesh
from benchmarks.risks.accumulator_parameter import RULES, Precision

MESHES = {
    2: (Mesh((("x0", 2),)),),
    4: (Mesh((("x0", 4),)), Mesh((("x0", 2), ("data", 2)))),
}
STRATEGIES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-2 micro_batch", "ZeRO-3", "ZeRO-3 small whole")
COPIES = ("ZeRO-1", "ZeRO-1 copy=step", "ZeRO-1 copy=first_use")
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
ERROR_LIMIT = 1e-12


def cases_by_table(ranks: int) -> dict[str, list[Case]]:
    """The cases of each table for one number of ranks."""
    tables: dict[str, list[Case]] = {"parity": [], "menu": [], "copy": [], "fault": []}
    for mesh in MESHES[ranks]:
        names = (*STRATEGIES, "HSDP") if len(mesh.axes) > 1 else STRATEGIES
        tables["parity"] += [Case(mesh, name, rule) for name, rule in product(names, RULES)]
        tables["parity"] += [Case(mesh, name, width=2, hidden=10) for name in names]
    mesh = MESHES[ranks][-1]
    tables["copy"] = [Case(mesh, name) for name in COPIES]
    tables["fault"] = [
        Case(mesh, name, fault=fault, steps=2)
        for fault, name in product(FAULTS, ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    ]
    tables["precision"] = [
        Case(mesh, name, rule, "many", precision=Precision(torch.float32, reduce, accumulate))
        for accumulate, reduce in product((torch.float32, torch.bfloat16), repeat=2)
        for name, rule in (
            ("ZeRO-1", "every_bucket"),
            ("ZeRO-1", "join_plan"),
            ("ZeRO-2", "join_plan"),
        )
    ]
    if len(mesh.axes) > 1:
        tables["menu"] = [
            Case(mesh, name, rule, schedule, steps=1)
            for schedule, name, rule in product(
                ("data+ulysses", "data+mixed"),
                ("DDP", "ZeRO-1", "ZeRO-2", "HSDP"),
                ("every_bucket", "join_plan"),
            )
        ]
    return tables


def run(ranks: int, timeout_s: float) -> tuple[dict[str, report.Rows], tuple[RankResult, ...]]:
    """All tables of one number of ranks, on one set of processes."""
    tables = cases_by_table(ranks)
    cases = tuple(case for group in tables.values() for case in group)
    results = launch(cases, timeout_s)
    outcomes = iter(zip(*(result.outcomes for result in results), strict=True))
    rows = {name: [(case, next(outcomes)) for case in group] for name, group in tables.items()}
    return rows, results


def failures(rows: dict[str, report.Rows]) -> list[str]:
    """What contradicts the finding, one line each."""
    found = []
    for case, ranks in [*rows["parity"], *rows["menu"]]:
        name = f"{case.mesh} {case.width}x{case.hidden} {case.strategy} {case.rule}"
        for field in ("gradient_error", "input_error", "weight_error", "loss_error"):
            if not report.worst(ranks, field) <= ERROR_LIMIT:
                found.append(f"{name}: {field} {report.worst(ranks, field):.1e}")
        if not report.is_as_predicted(ranks):
            found.append(f"{name}: bytes are not those of the closed form")
        if report.worst(ranks, "switch_bytes"):
            found.append(f"{name}: switching moves bytes")
        if report.worst(ranks, "empty_gradient"):
            found.append(f"{name}: an empty replica has a gradient")
        if not report.replicas_agree(ranks):
            found.append(f"{name}: replicas of a master differ")
    return found


def render(ranks: tuple[int, ...], timeout_s: float) -> tuple[str, list[str]]:
    """The tables as Markdown, and the failures."""
    parts, problems, all_results = [], [], []
    for count in ranks:
        rows, results = run(count, timeout_s)
        all_results.append(results)
        problems += failures(rows)
        mesh = rows["copy"][0][0].mesh
        parts += [
            f"### {count} ranks: parity and bytes, five steps\n",
            report.parity_table(rows["parity"]),
            "Activations and loss, the same for every strategy and rule:\n",
            report.activation_table(rows["parity"]),
        ]
        if rows["menu"]:
            parts += [
                f"### {mesh}: two buckets, one step of four slots\n",
                report.menu_table(rows["menu"]),
            ]
        parts += [
            f"### {mesh}: copies that live for the step (weight all_gather bytes)\n",
            report.copy_table(rows["copy"]),
            f"### {mesh}: number formats, one step of {'39' if count == 4 else '33'} slots, "
            "copies in float32\n",
            report.precision_table(rows["precision"]),
            f"### {mesh}: seeded faults, largest error that they leave (rule join_plan)\n",
            report.fault_table(rows["fault"]),
        ]
    comparisons = [
        compare(mesh, Layout(master))
        for mesh in (*MESHES[2], *MESHES[4], Mesh((("x0", 8), ("data", 8))))
        for master in ((), mesh.names)
    ]
    parts += [
        "### All pairs of layouts on real ranks, a dim of 10\n",
        report.pairs_table(all_results),
        "### All combinations of up to three slots: bytes sent, join_step against a reduction "
        "in every micro-batch, accumulator stored whole\n",
        report.cost_table(comparisons),
    ]
    return "\n".join(parts), problems


def main() -> int:
    """Command line; the exit code is 1 when something contradicts the finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, action="append", choices=sorted(MESHES))
    parser.add_argument("--timeout-s", type=float, default=900.0)
    parser.add_argument("--write", type=Path, help="page whose tables are renewed")
    options = parser.parse_args()
    ranks = tuple(options.ranks or sorted(MESHES))
    text, problems = render(ranks, options.timeout_s)
    arguments = "".join(f" --ranks {count}" for count in options.ranks or ())
    stamp = (
        f"`python -m benchmarks.risks.accumulator{arguments}`, "
        f"{datetime.datetime.now(datetime.UTC).date()}, torch {torch.__version__}, "
        f"{os.cpu_count()} cores, CPU, gloo.\n"
    )
    if options.write:
        page = options.write.read_text()
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        options.write.write_text(f"{before}{BEGIN}\n{stamp}\n{text}\n{END}{after}")
    print(stamp)
    print(text)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
