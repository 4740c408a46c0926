"""Plans for tests: the hand-written golden files, and random legal plans for hypothesis."""

import math
from itertools import groupby, pairwise
from pathlib import Path

from hypothesis import strategies as st

from shardwise.ir.bucket import Band, Bucket
from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun
from shardwise.ir.certificate import Baseline, LongDocuments, Menu, PricedFor, Status
from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.fingerprint import ModelFingerprint, UnitRun
from shardwise.ir.layout import Layout, Partial, Placement, Select, Shard
from shardwise.ir.mesh import Mesh, MeshAxis
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.prices import Prices
from shardwise.ir.strategy import Recompute, Role, Strategy
from shardwise.ir.training import TrainingSpec
from shardwise.ir.value_layout import ValueLayout, following

GOLDEN = sorted((Path(__file__).parents[2] / "examples" / "plans").glob("*.json"))
"""The files of examples/plans, by name."""

WORDS = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
LINES = st.text('ab c"\\é漢*,;|[]{}:=', max_size=6)
DIGESTS = st.integers(0, 2**256 - 1).map("{:064x}".format)
LINKS = ("nvlink", "ib")
SECONDS = st.floats(1e-6, 1e6)


@st.composite
def legal_plans(draw: st.DrawFn) -> Plan:
    """Any legal plan, small."""
    mesh = draw(meshes())
    model = draw(models(least=_axis_size(mesh, "stage")))
    training = TrainingSpec(
        draw(st.sampled_from(["adamw", "sgd", "muon"])),
        compute_dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        clip_norm=draw(st.none() | st.floats(0.1, 10)),
    )
    strategies = dict(draw(st.lists(strategies_over(mesh), min_size=1, max_size=4, unique=True)))
    buckets = draw(bucket_plans(mesh, model.unit_count, strategies))
    used = {run.strategy for bucket in buckets for run in bucket.runs}
    kept = tuple((name, strategies[name]) for name in strategies if name in used)
    bound_s = draw(SECONDS)
    step_s = bound_s * (1 + draw(st.floats(0, 2)))
    peak_bytes = max(bucket.largest_peak_bytes() for bucket in buckets)
    return Plan(
        model=model,
        training=training,
        mesh=mesh,
        groups=draw(groups_over(mesh)),
        stages=draw(stage_cuts(model.unit_count, _axis_size(mesh, "stage"))),
        parameters=draw(parameter_choices(mesh, training)),
        strategies=kept,
        buckets=buckets,
        step_s=step_s,
        bound_s=bound_s,
        gap=max(0.0, step_s / bound_s - 1),
        status=draw(st.sampled_from(Status)),
        menu=Menu.EXECUTABLE if all(s.executable for _, s in kept) else Menu.ALL,
        menu_strategies=len(kept) + draw(st.integers(0, 99)),
        covers=draw(LINES.filter(bool)),
        baselines=draw(baseline_lists()),
        free_switching_price=draw(st.floats(1, 3)),
        priced_for=PricedFor(
            Cluster("c", "h", tuple(Level(link, 64, link) for link in LINKS)),
            draw(DIGESTS),
            draw(DIGESTS),
            draw(DIGESTS),
            tokens_per_step=draw(st.integers(1, 2**40)),
            memory_limit_bytes_per_rank=math.ceil(peak_bytes) + 1,
        ),
        long_documents=draw(st.sampled_from(LongDocuments)),
    )


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    names = [name for name in ("stage", "x0", "x1", "data") if draw(st.booleans())]
    axes = tuple(
        MeshAxis(name, draw(st.integers(1, 4)), draw(st.sampled_from(LINKS))) for name in names
    )
    return Mesh(axes, tuple(draw(st.permutations(names))))


@st.composite
def models(draw: st.DrawFn, least: int) -> ModelFingerprint:
    templates = draw(st.lists(LINES.filter(bool), min_size=1, max_size=4))
    runs = [UnitRun(name, draw(st.integers(1, 4))) for name, _ in groupby(templates)]
    short = least - sum(run.count for run in runs)
    if short > 0:
        runs[-1] = UnitRun(runs[-1].template, runs[-1].count + short)
    return ModelFingerprint(
        draw(LINES.filter(bool)), draw(DIGESTS), draw(st.integers(1, 10**12)), tuple(runs)
    )


@st.composite
def strategies_over(draw: st.DrawFn, mesh: Mesh) -> tuple[str, Strategy]:
    axes = [name for name in mesh.axis_names if name != "stage"]
    kept = draw(st.lists(st.sampled_from(axes), unique=True)) if axes else []
    roles = tuple((axis, draw(st.sampled_from(Role))) for axis in kept)
    working = [axis for axis, role in roles if role is not Role.REPLICATE]
    values = st.lists(value_layouts(mesh, working), max_size=3).map(tuple)
    return draw(st.from_regex(r"[a-z][a-z0-9_.-]{0,4}", fullmatch=True)), Strategy(
        draw(WORDS.filter(lambda word: word not in ("in", "out"))),
        roles,
        draw(values),
        draw(values),
        draw(st.sampled_from(Recompute)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def value_layouts(draw: st.DrawFn, mesh: Mesh, axes: list[str]) -> ValueLayout:
    forward = draw(layouts(mesh, axes, addends=True))
    reads = [axis for axis in axes if axis not in forward.axes and draw(st.booleans())]
    addends = tuple((axis, Partial()) for axis in reads)
    return ValueLayout(forward, Layout((*following(forward).entries, *addends)))


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, axes: list[str], *, addends: bool = False) -> Layout:
    kept = draw(st.lists(st.sampled_from(axes), unique=True)) if axes else []
    return Layout(tuple((axis, draw(placements(mesh, axis, addends=addends))) for axis in kept))


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh, axis: str, *, addends: bool) -> Placement:
    kind = draw(st.sampled_from(["shard", "outer", "sections", "select", "partial"]))
    dim = draw(st.integers(0, 3))
    match kind:
        case "outer":
            return Shard(dim, outer=draw(st.integers(2, 5)))
        case "sections":
            return Shard(dim, sections=(4, draw(st.integers(1, 3))))
        case "select":
            own_dim = 4 + mesh.axis_names.index(axis)  # a dim is selected from once at most
            intervals = ((i // 2, i // 2 + 1) for i in range(mesh.axis(axis).size))
            return Select(own_dim, tuple(intervals))
        case "partial" if addends:
            return Partial()
    return Shard(dim)


@st.composite
def parameter_choices(
    draw: st.DrawFn, mesh: Mesh, training: TrainingSpec
) -> tuple[ParameterChoice, ...]:
    axes = [name for name in mesh.axis_names if name != "stage"]
    names = draw(st.lists(WORDS, min_size=1, max_size=4, unique=True))
    choices: list[ParameterChoice] = []
    for name in names:
        whole = not training.optimizer_kind.elementwise
        master = Layout() if whole else draw(layouts(mesh, axes))
        free = master.entries or training.compute_dtype != training.master_dtype
        low = draw(st.integers(0, 9))
        choices.append(
            ParameterChoice(
                draw(st.sampled_from([name, f"{name}.{{{low}:{low + 3}}}.w"])),
                master,
                draw(layouts(mesh, axes)),
                draw(st.sampled_from(Lifetime)) if free else Lifetime.STEP,
            )
        )
    return tuple(choices)


@st.composite
def bucket_plans(
    draw: st.DrawFn, mesh: Mesh, unit_count: int, strategies: dict[str, Strategy]
) -> tuple[BucketPlan, ...]:
    dims = draw(st.sampled_from([("S",), ("S_src", "S_tgt")]))
    edges = sorted(draw(st.sets(st.integers(0, 10**6), min_size=2, max_size=4)))
    plans: list[BucketPlan] = []
    for low, high in pairwise(edges):
        bands = (Band(dims[0], low, high), *(Band(dim, 0, 64) for dim in dims[1:]))
        sizes = {low + 1, high} if draw(st.booleans()) else {high}
        rest = tuple((dim, 64) for dim in dims[1:])
        padded = tuple(PaddedShape(((dims[0], size), *rest)) for size in sorted(sizes))
        units = draw(
            st.lists(st.sampled_from(sorted(strategies)), min_size=unit_count, max_size=unit_count)
        )
        runs = tuple(StrategyRun(name, len([*group])) for name, group in groupby(units))
        degree = mesh.group_size(strategies[runs[0].strategy].axes(Role.BATCH))
        plans.append(
            BucketPlan(
                Bucket(bands),
                degree,
                draw(st.integers(1, 9)),
                padded,
                runs,
                draw(prices_of(dims)),
                draw(prices_of(dims)),
            )
        )
    return tuple(plans)


def prices_of(dims: tuple[str, ...]) -> st.SearchStrategy[Prices]:
    texts = ["1", "B", "T", f"{dims[0]}2", f"W64({dims[0]})", "*".join(dims)]
    terms = st.dictionaries(st.sampled_from(texts), st.floats(1e-12, 1e3), min_size=1, max_size=4)
    return st.builds(lambda t, e: Prices(tuple(t.items()), e), terms, st.floats(0, 0.5))


@st.composite
def groups_over(draw: st.DrawFn, mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    axes = [axis.name for axis in mesh.axes if axis.size > 1]
    more = st.lists(st.sampled_from(axes), min_size=1, unique=True).map(tuple)
    extra = draw(st.lists(more, max_size=3, unique=True)) if axes else []
    singles = [(axis,) for axis in axes if (axis,) not in extra]
    return tuple(draw(st.permutations([*extra, *singles])))


@st.composite
def stage_cuts(draw: st.DrawFn, unit_count: int, count: int) -> tuple[Stage, ...]:
    inner = st.sets(st.integers(1, unit_count - 1), min_size=count - 1, max_size=count - 1)
    edges = [0, *sorted(draw(inner) if count > 1 else ()), unit_count]
    return tuple(map(Stage, edges, edges[1:]))


@st.composite
def baseline_lists(draw: st.DrawFn) -> tuple[Baseline, ...]:
    names = draw(st.lists(LINES.filter(bool), max_size=3, unique=True))
    numbers = st.none() | SECONDS
    return tuple(
        Baseline(name, step_s, draw(numbers), draw(LINES.filter(lambda t, s=step_s: s or t)))
        for name in names
        for step_s in [draw(numbers)]
    )


def _axis_size(mesh: Mesh, name: str) -> int:
    return mesh.axis(name).size if name in mesh.axis_names else 1
