"""From the search's answer to a Plan: strategies, buckets with compiled prices, certificate."""

from collections.abc import Sequence

import numpy as np

from shardwise.ir.bucket import Band as LengthBand
from shardwise.ir.bucket import Bucket
from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun
from shardwise.ir.certificate import Baseline, LongDocuments, Menu, PricedFor, Status
from shardwise.ir.mesh import Mesh
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.prices import Prices
from shardwise.ir.program import LocalProgram, Move, Use, made_by
from shardwise.ir.strategy import Recompute, Strategy
from shardwise.ir.value_layout import ValueLayout
from shardwise.planner import menu
from shardwise.planner.candidates import Option, SchemeTable
from shardwise.planner.edges import lengths_of
from shardwise.planner.search import Found, Request


def strategy_id(option: Option) -> str:
    """Id of an option's strategy in the plan: `ulysses`, `ulysses.layer` with recomputation."""
    if option.recompute is Recompute.NONE:
        return option.implementation
    return f"{option.implementation}.{option.recompute}"


def assemble(
    request: Request,
    found: Found,
    *,
    edges: Sequence[int],
    model_sizes: Sequence[int],
    bound_s: float,
    menu_strategies: int,
    baselines: tuple[Baseline, ...],
    free_switching_price: float,
    long_documents: LongDocuments,
) -> Plan:
    """The plan of an answer. `bound_s` is the certified bound of the same menu."""
    mesh = found.mesh
    units = len(request.traced.units)
    strategies: dict[str, Strategy] = {}
    buckets = []
    for band in found.bands:
        option = band.option
        program = found.table.activations.programs.programs[option.implementation]
        strategies[strategy_id(option)] = menu.strategy(
            option.implementation, mesh, option.recompute, hidden_layouts(program)
        )
        low, high = lengths_of(edges, band)
        buckets.append(
            BucketPlan(
                Bucket((LengthBand("S", low, high),)),
                option.batch_degree,
                option.seats,
                (PaddedShape((("S", high),)),),
                (StrategyRun(strategy_id(option), units),),
                *_compiled(found.table, option, high),
            )
        )
    return Plan(
        model=request.traced.fingerprint,
        training=request.training,
        mesh=mesh,
        groups=_groups(mesh),
        stages=(Stage(0, units),),
        parameters=found.table.choices(),
        strategies=tuple(strategies.items()),
        buckets=tuple(buckets),
        step_s=found.step_s,
        bound_s=bound_s,
        gap=found.step_s / bound_s - 1,
        status=Status.OPTIMAL_WITHIN_GAP,
        menu=Menu.EXECUTABLE,
        menu_strategies=menu_strategies,
        covers=(
            f"exact minimum of this price model over the meshes of {mesh.world_size} ranks with a "
            f"model axis of {', '.join(map(str, model_sizes))}, parameter schemes, sets of "
            "implementations, recomputation, seats in powers of two and bucket edges from "
            f"{len(edges) - 1} candidates; one strategy for all layers of a bucket"
        ),
        baselines=baselines,
        free_switching_price=free_switching_price,
        priced_for=PricedFor(
            request.cluster,
            request.hardware.digest(),
            request.software.digest(),
            request.lengths.digest(),
            request.tokens_per_step,
            request.memory_limit_bytes_per_rank,
        ),
        long_documents=long_documents,
    )


def hidden_layouts(program: LocalProgram) -> tuple[ValueLayout, ...]:
    """The layout of the hidden states that cross units: of the first value with a gradient that a
    unit hands on, or, of a model of one unit, of its loss."""
    handed = {name for unit in program.units for name in unit.reads} | set(program.outputs)
    for step in program.steps():
        if isinstance(step, Use) or not step.needs_gradient:
            continue
        layouts = (step.target,) if isinstance(step, Move) else step.writes
        for name, layout in zip(made_by(step), layouts, strict=True):
            if name in handed:
                return (layout,)
    return ()


def _groups(mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """Process groups: each axis, and all of them together for gathers over the whole mesh."""
    names = mesh.axis_names
    single = tuple((name,) for name in names)
    return (*single, names) if len(names) > 1 else single


def _compiled(table: SchemeTable, option: Option, high: int) -> tuple[Prices, Prices]:
    """(time, peak) of a slot as coefficients of 1, T and S2, through three lengths.

    Three monomials through three prices: exact at the padded length, where the plan states them.
    """
    multiple = menu.model_size(table.activations.programs.mesh)
    lengths = sorted({max(multiple, high * i // 4 // multiple * multiple) for i in (1, 2, 4)})
    k = option.documents_per_slot
    rows = np.array([[1.0, k * s, k * s * s] for s in lengths])
    prices = [table.price(option, s) for s in lengths]
    names = ("1", "T", "S2")
    result = []
    for values in ([p.time_s for p in prices], [float(p.peak_bytes) for p in prices]):
        count = len(lengths)
        scaled = rows[:, :count] / rows[:, :count].max(axis=0)
        solved = np.linalg.lstsq(scaled, np.array(values), rcond=None)[0]
        coefficients = solved / rows[:, :count].max(axis=0)
        stated = float(rows[-1, :count] @ coefficients)
        result.append(
            Prices(
                tuple((name, float(c)) for name, c in zip(names, coefficients, strict=False) if c),
                abs(stated - values[-1]) / values[-1],
            )
        )
    return result[0], result[1]
