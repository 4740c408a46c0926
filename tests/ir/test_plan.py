"""Plan: random legal plans round-trip, every rule of legality has a plan that breaks it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun
from shardwise.ir.certificate import Baseline, Menu, PricedFor, Status, checked_gap
from shardwise.ir.errors import InvalidValueError, MismatchError, ParseError
from shardwise.ir.fingerprint import UnitRun
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.plan_file import load, loads
from shardwise.ir.plan_rules import RULES
from shardwise.ir.prices import Prices
from shardwise.ir.strategy import Strategy
from tests.support.plans import GOLDEN, legal_plans

PLANS = {path.stem: load(path) for path in GOLDEN}
ONE, FOUR, LARGE = (PLANS[n] for n in ("one-rank", "four-ranks", "llama-3-8b-512-ranks"))


@settings(max_examples=40)
@given(legal_plans())
def test_random_plans_round_trip(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan
    again = loads(str(plan).encode())
    assert again == plan
    assert str(again) == str(plan)
    assert again.digest() == plan.digest()
    for bucket in plan.buckets:
        assert BucketPlan.parse(str(bucket)) == bucket
    for baseline in plan.baselines:
        assert Baseline.parse(str(baseline)) == baseline
    for stage in plan.stages:
        assert Stage.parse(str(stage)) == stage
    assert PricedFor.parse(str(plan.priced_for)) == plan.priced_for


@settings(max_examples=25)
@given(legal_plans(), st.randoms())
def test_what_has_no_order_of_its_own_is_sorted(plan: Plan, random: Any) -> None:
    def shuffled(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(values, len(values)))

    again = replace(
        plan,
        groups=shuffled(plan.groups),
        parameters=shuffled(plan.parameters),
        strategies=shuffled(plan.strategies),
    )
    assert again == plan
    assert again.digest() == plan.digest()


def test_the_digest_depends_on_everything() -> None:
    plain = json.loads(str(FOUR))
    digests = {FOUR.digest(), LARGE.digest(), ONE.digest()}
    for change in (
        {"long_documents": "drop"},
        {"covers": "something else"},
        {"baselines": []},
        {"menu": "all"},
        {"free_switching_price": 1.5},
    ):
        digests.add(loads(json.dumps({**plain, **change}).encode()).digest())
    assert len(digests) == 8
    assert len(FOUR.digest()) == 64


def test_queries() -> None:
    first, second = FOUR.buckets
    assert first.documents_per_slot == 8
    assert FOUR.unit_strategies(second) == ("embed.ts", *["layer.ts"] * 4, "head.ts")
    assert FOUR.strategy("layer.ts").implementation == "tensor_sequence"
    assert first.largest_peak_bytes() == 2.5e8 + 6600.0 * 8 * 1024
    assert second.largest_slot_time_s() == pytest.approx(0.034 + 9.2e-6 * 16384 + 1.7e-9 * 2**27)
    with pytest.raises(InvalidValueError, match=r"no strategy 'x': use one of embed\.dp, "):
        FOUR.strategy("x")


def bucket(plan: Plan, place: int, **changes: Any) -> Plan:
    """`plan` with another bucket at `place`."""
    changed = replace(plan.buckets[place], **changes)
    return replace(plan, buckets=(*plan.buckets[:place], changed, *plan.buckets[place + 1 :]))


def parameter(plan: Plan, place: int, **changes: Any) -> Plan:
    changed = replace(plan.parameters[place], **changes)
    rest = plan.parameters[:place], plan.parameters[place + 1 :]
    return replace(plan, parameters=(*rest[0], changed, *rest[1]))


def strategy(plan: Plan, name: str, text: str) -> Plan:
    changed = {**dict(plan.strategies), name: Strategy.parse(text)}
    return replace(plan, strategies=tuple(changed.items()))


def priced(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, priced_for=replace(plan.priced_for, **changes))


TEXT = "data x0=batch data=batch in=[] out=[]"
CASES: list[tuple[str, Callable[[], Plan], str]] = [
    ("parts_have_their_types", lambda: replace(FOUR, version=2), "at version: 2 "),
    ("parts_have_their_types", lambda: replace(FOUR, version=True), "at version: True"),
    ("parts_have_their_types", lambda: replace(FOUR, mesh="x0=4"), "at mesh: .* a Mesh"),
    ("parts_have_their_types", lambda: replace(FOUR, status="feasible"), "at status: "),
    ("parts_have_their_types", lambda: replace(FOUR, menu="all"), "at menu: .* a Menu"),
    ("parts_have_their_types", lambda: replace(FOUR, buckets=[]), "at buckets: "),
    ("parts_have_their_types", lambda: replace(FOUR, stages=("0:6",)), "at stages: "),
    ("parts_have_their_types", lambda: replace(FOUR, groups=("x0",)), "at groups: "),
    ("parts_have_their_types", lambda: replace(FOUR, groups=((1,),)), "names of axes"),
    ("parts_have_their_types", lambda: replace(FOUR, strategies=(("a",),)), "Strategy. pairs"),
    (
        "parts_have_their_types",
        lambda: replace(FOUR, strategies=(("A", Strategy.parse(TEXT)),)),
        "at strategies: strategy id 'A'",
    ),
    (
        "groups_are_over_the_mesh",
        lambda: replace(FOUR, groups=(("x9",),)),
        r"groups\[0\]: axis",
    ),
    (
        "groups_are_over_the_mesh",
        lambda: replace(FOUR, groups=(("x0",), ("x0",))),
        r"\[1\]: x0",
    ),
    ("groups_are_over_the_mesh", lambda: replace(FOUR, groups=(("x0", "x0"),)), "axis twice"),
    ("groups_are_over_the_mesh", lambda: replace(FOUR, groups=((),)), "with nobody"),
    ("groups_are_over_the_mesh", lambda: replace(FOUR, groups=(("x0",),) * 13), "12 at most"),
    ("stages_cover_the_units", lambda: replace(LARGE, stages=LARGE.stages[:3]), "has 4; give"),
    (
        "stages_cover_the_units",
        lambda: replace(FOUR, stages=(Stage(0, 5),)),
        r"\[0\]: .* unit 5",
    ),
    ("stages_cover_the_units", lambda: replace(FOUR, stages=(Stage(1, 6),)), "begin at unit 0"),
    (
        "the_model_has_parameters",
        lambda: replace(FOUR, model=replace(FOUR.model, parameter_count=0)),
        r"model\.parameter_count: 0",
    ),
    ("parts_have_their_types", lambda: replace(FOUR, parameters=()), "parameters: none"),
    (
        "parameters_rest_on_the_mesh",
        lambda: parameter(FOUR, 2, pattern="model.layers.{2:9}.mlp.down_proj.weight"),
        r"parameters\[3\]\.pattern: .* shares a name",
    ),
    (
        "parameters_rest_on_the_mesh",
        lambda: parameter(FOUR, 1, master=Layout.parse("x1:S(0)")),
        r"parameters\[1\]\.master: axis 'x1' is not in mesh",
    ),
    (
        "parameters_rest_on_the_mesh",
        lambda: parameter(LARGE, 1, accumulator=Layout.parse("stage:S(0)")),
        r"parameters\[1\]\.accumulator: axis stage cuts the model",
    ),
    (
        "parameters_rest_on_the_mesh",
        lambda: parameter(FOUR, 1, master=Layout.parse("x0:I(0,0:8/0:8/8:16)")),
        "3 intervals and the axis 2",
    ),
    (
        "parameters_rest_on_the_mesh",
        lambda: parameter(FOUR, 1, accumulator=Layout.parse("x0:S(0,outer=2*B)")),
        r"parameters\[1\]\.accumulator: .* depends on lengths",
    ),
    (
        "copies_are_worth_their_lifetime",
        lambda: parameter(FOUR, 2, lifetime=Lifetime.USE),
        r"parameters\[2\]\.lifetime: use is given",
    ),
    (
        "optimizers_see_what_they_need",
        lambda: replace(FOUR, training=replace(FOUR.training, optimizer="muon")),
        r"parameters\[0\]\.master: .* whole matrices",
    ),
    ("parts_have_their_types", lambda: replace(FOUR, strategies=()), "strategies: none"),
    (
        "strategies_are_over_the_mesh",
        lambda: strategy(FOUR, "spare", TEXT),
        r"strategies\.spare: no bucket uses",
    ),
    (
        "strategies_are_over_the_mesh",
        lambda: replace(FOUR, strategies=(*FOUR.strategies, FOUR.strategies[0])),
        r'strategies\["embed\.dp"\]: this id is given twice',
    ),
    (
        "strategies_are_over_the_mesh",
        lambda: strategy(FOUR, "head.dp", f"{TEXT} not_executable"),
        "not executable but the menu is",
    ),
    (
        "strategies_are_over_the_mesh",
        lambda: strategy(FOUR, "head.dp", "data x1=batch in=[] out=[]"),
        "axis 'x1' is not in mesh",
    ),
    (
        "strategies_are_over_the_mesh",
        lambda: strategy(LARGE, "head.dp", "data stage=batch in=[] out=[]"),
        "axis stage cuts",
    ),
    (
        "strategies_are_over_the_mesh",
        lambda: strategy(FOUR, "head.dp", "data x0=tensor in=[R; x0:I(1,0:8)] out=[]"),
        "1 intervals and the axis 2",
    ),
    (
        "split_axes_have_a_group",
        lambda: replace(FOUR, groups=(("x0",),)),
        "groups: no group has axis data",
    ),
    (
        "split_axes_have_a_group",
        lambda: replace(LARGE, groups=LARGE.groups[1:]),
        "groups: no group has axis stage",
    ),
    ("parts_have_their_types", lambda: replace(FOUR, buckets=()), "at buckets: none"),
    (
        "buckets_ascend",
        lambda: replace(FOUR, buckets=FOUR.buckets[::-1]),
        r"\[1\]\.bucket: .* as",
    ),
    (
        "buckets_ascend",
        lambda: replace(LARGE, buckets=(*LARGE.buckets[:2], overlapping(LARGE))),
        r"buckets\[2\]\.bucket: S\(4096,131072\] shares lengths with S\(2048,16384\]",
    ),
    (
        "buckets_ascend",
        lambda: replace(FOUR, buckets=(FOUR.buckets[0], other_dim(FOUR))),
        "has other dims",
    ),
    (
        "runs_cover_the_units",
        lambda: replace(FOUR, strategies=FOUR.strategies[:-1]),
        r"buckets\[1\]\.runs\[1\]: strategy layer\.ts is not in the plan",
    ),
    (
        "runs_cover_the_units",
        lambda: bucket(
            FOUR,
            1,
            runs=tuple(map(StrategyRun, ("embed.ts", "layer.ts", "head.ts"), (1, 3, 1))),
        ),
        r"buckets\[1\]\.runs: they cover 5 units and the model has 6",
    ),
    (
        "batch_degrees_are_those_of_strategies",
        lambda: bucket(FOUR, 1, batch_degree=4),
        r"buckets\[1\]\.batch_degree: 4 is given, .* have '2' ranks",
    ),
    (
        "peaks_fit_the_memory",
        lambda: priced(FOUR, memory_limit_bytes_per_rank=300_000_000),
        r"buckets\[1\]\.peak_bytes_per_rank: a full slot peaks at 387795200 bytes",
    ),
    ("the_cluster_has_the_mesh", lambda: four_on_two(), "mesh: .* needs 4 ranks"),
    (
        "the_cluster_has_the_mesh",
        lambda: replace(FOUR, mesh=Mesh.parse("x0=2@loopback data=2@ib")),
        "mesh: axis data=2@ib has a link",
    ),
    (
        "the_cluster_has_the_mesh",
        lambda: priced(FOUR, cluster=FOUR.priced_for.cluster.limited(10**9)),
        r"priced_for\.memory_limit_bytes_per_rank: 2000000000 is over the 1000000000",
    ),
    ("the_certificate_holds_together", lambda: replace(FOUR, step_s=0.0), "at step_s: "),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, step_s=float("inf")),
        "at step_s: ",
    ),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, bound_s=float("nan")),
        "at bound_s",
    ),
    ("the_certificate_holds_together", lambda: replace(FOUR, bound_s=2.4), "faster than its b"),
    ("the_certificate_holds_together", lambda: replace(FOUR, gap=0.5), "at gap: 0.5 is given"),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, gap=-0.1),
        "at gap: -0.1 is given",
    ),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, free_switching_price=0.99),
        "at free_switching_price: 0.99 is given; it is >= 1",
    ),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, menu_strategies=5),
        "at menu_strategies: 5 is given and the plan uses 6",
    ),
    ("the_certificate_holds_together", lambda: replace(FOUR, covers=""), "at covers: "),
    ("the_certificate_holds_together", lambda: replace(FOUR, covers="a\nb"), "at covers: "),
    (
        "the_certificate_holds_together",
        lambda: replace(FOUR, baselines=FOUR.baselines[:1] * 2),
        r"at baselines\[1\]\.name: 'DDP' is given twice",
    ),
]


def overlapping(plan: Plan) -> BucketPlan:
    """The last bucket of the large plan, reaching down into the one before."""
    return BucketPlan.parse(str(plan.buckets[2]).replace("S(16384,", "S(4096,"))


def other_dim(plan: Plan) -> BucketPlan:
    text = str(plan.buckets[1]).replace("S(", "N(").replace("S=", "N=")
    return BucketPlan.parse(text.replace(" S2", " N2"))


def four_on_two() -> Plan:
    cluster = FOUR.priced_for.cluster
    smaller = replace(cluster, levels=(replace(cluster.levels[0], size=2),))
    return priced(FOUR, cluster=smaller)


@pytest.mark.parametrize(("rule", "make", "message"), CASES)
def test_every_rule_refuses_a_plan_that_breaks_it(
    rule: str, make: Callable[[], Plan], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("at ")


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _, _ in CASES} == set(RULES)


def test_the_rules_find_nothing_in_the_golden_plans() -> None:
    for plan in PLANS.values():
        assert [problem for rule in RULES.values() for problem in rule(plan)] == []


def test_lifetimes_are_free_where_a_copy_is_cast() -> None:
    norm = next(p for p, c in enumerate(LARGE.parameters) if "norm" in c.pattern)
    assert parameter(LARGE, norm, master=Layout(), lifetime=Lifetime.USE)


def test_all_schemes_are_legal_choices() -> None:
    """DDP, ZeRO-1, ZeRO-2 and ZeRO-3 over data, and mixtures with a model axis."""
    for master, accumulator, lifetime in (
        ("R", "R", Lifetime.STEP),
        ("data:S(0)", "R", Lifetime.STEP),
        ("data:S(0)", "data:S(0)", Lifetime.STEP),
        ("data:S(0)", "data:S(0)", Lifetime.USE),
        ("x0:S(1) data:S(0)", "data:S(1)", Lifetime.MICRO_BATCH),
    ):
        choice = ParameterChoice("w", Layout.parse(master), Layout.parse(accumulator), lifetime)
        assert replace(FOUR, parameters=(choice,)).parameters == (choice,)


def test_a_whole_matrix_optimizer_may_keep_frozen_parameters_cut() -> None:
    training = replace(FOUR.training, optimizer="muon", trainable=("*norm.weight",))
    assert replace(FOUR, training=training)


def test_a_peak_over_the_limit_within_its_fit_error_is_legal() -> None:
    limit = int(FOUR.buckets[1].largest_peak_bytes() / 1.03) + 1
    assert priced(FOUR, memory_limit_bytes_per_rank=limit)
    with pytest.raises(InvalidValueError, match="peaks at"):
        priced(FOUR, memory_limit_bytes_per_rank=limit - 2)


def test_check_model_names_what_differs() -> None:
    FOUR.check_model(FOUR.model)
    FOUR.check_model(replace(FOUR.model, name="another name"))
    for change, named in (
        ({"digest": "0" * 64}, "operators"),
        ({"parameter_count": 1}, "parameters 214592 -> 1"),
        ({"units": (UnitRun("embed"), UnitRun("layer", 5), UnitRun("head"))}, r"layer\*5"),
    ):
        with pytest.raises(MismatchError, match=named) as caught:
            FOUR.check_model(replace(FOUR.model, **change))
        assert "`shardwise plan --reprice`" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_check_world_names_both_numbers() -> None:
    LARGE.check_world(512)
    with pytest.raises(MismatchError, match=r"for 512 ranks \(stage=4@ib .* and 8 run") as caught:
        LARGE.check_world(8)
    assert "torchrun" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("step_s", "bound_s", "gap"),
    [(1.0, 1.0, 0.0), (3.0, 2.0, 0.5), (3.0, 2.0, 0.5 + 1e-9), (1.0, 1.0 + 1e-10, 0.0)],
)
def test_gaps_that_are_consistent(step_s: float, bound_s: float, gap: float) -> None:
    assert checked_gap(gap, step_s=step_s, bound_s=bound_s) == gap


@pytest.mark.parametrize(
    ("step_s", "bound_s", "gap"),
    [(3.0, 2.0, 0.5 + 1e-8), (3.0, 2.0, 0.5 - 1e-8), (1.0, 1.1, 0.0), (1e300, 1e-300, 1.0)],
)
def test_gaps_that_are_not(step_s: float, bound_s: float, gap: float) -> None:
    with pytest.raises(InvalidValueError):
        checked_gap(gap, step_s=step_s, bound_s=bound_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_degree": 0}, "^batch_degree: 0 is given"),
        ({"seats": True}, "^seats: True is given"),
        ({"padded": ()}, "^padded: 0 shapes"),
        ({"padded": tuple(PaddedShape((("S", n),)) for n in range(1025, 1030))}, "1 to 4"),
        ({"padded": (PaddedShape((("S", 4096),)),)}, "^padded: no shape holds the longest"),
        (
            {"padded": (PaddedShape((("S", 1024),)), PaddedShape((("S", 8192),)))},
            r"^padded\[0\]: S=1024 holds no document",
        ),
        ({"padded": (PaddedShape((("S", 8192),)),) * 2}, r"^padded\[1\]: .* ascending"),
        (
            {"padded": (PaddedShape((("N", 8192),)),)},
            r"^padded\[0\]: N=8192 has not the dims S",
        ),
        ({"runs": ()}, "^runs: none"),
        ({"runs": (StrategyRun("a"), StrategyRun("a", 2))}, r"^runs\[1\]: .* merge"),
        ({"time": Prices((("T", -1.0),))}, "^time_s: the price at S=2048 with 2 documents"),
        ({"peak": Prices((("S_src", 1.0),))}, "^peak_bytes_per_rank: monomial S_src"),
        ({"peak": Prices((("S2", 1e308),))}, "^peak_bytes_per_rank: .* is inf"),
    ],
)
def test_illegal_bucket_plans(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        replace(FOUR.buckets[1], **changes)
    assert "\n" not in str(caught.value)


def test_a_price_may_fall_as_long_as_it_stays_above_zero() -> None:
    prices = Prices((("1", 20000.0), ("T", -1.0)))
    assert replace(FOUR.buckets[1], time=prices).largest_slot_time_s() == 20000.0 - 4096


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (Stage.parse, ["", "1", "3:3", "4:3", "0:6 ", "-1:2", "00:2", None]),
        (StrategyRun.parse, ["", "A", "a*", "a*0", "a*-1", "a*01", "a b", "a" * 65, None]),
        (PaddedShape.parse, ["", "S", "S=", "S=0", "S=01", "S=1,S=2", "S=1;T=2", "S=٣", None]),
        (BucketPlan.parse, ["", "S(0,1] | x", str(FOUR.buckets[0]) + " ", None]),
        (Baseline.parse, ["", '"a"', '"a" step_s=none peak_bytes=none ""', None]),
        (Baseline.parse, ['"a" step_s=nan peak_bytes=none ""', '"a" step_s=0 peak_bytes=1 ""']),
        (PricedFor.parse, ["", str(FOUR.priced_for) + "0" * 30, None]),
        (Plan.parse, ["", "{}", str(FOUR)[:-3], str(FOUR).replace("embed", "\ud800"), None]),
    ],
)
def test_broken_texts(parse: Callable[[Any], Any], texts: list[Any]) -> None:
    for text in texts:
        with pytest.raises(ParseError) as caught:
            parse(text)
        assert "\n" not in str(caught.value), text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stage(2, 2),
        lambda: Stage(True, 2),
        lambda: StrategyRun("x", 0),
        lambda: StrategyRun("X"),
        lambda: PaddedShape(()),
        lambda: PaddedShape((("S", 0),)),
        lambda: PaddedShape((("S", True),)),
        lambda: PaddedShape(("S", 1)),
        lambda: Baseline("", 1.0, 1.0),
        lambda: Baseline("a", -1.0, 1.0),
        lambda: Baseline("a", 1.0, True),
        lambda: Baseline("a", 10**400, None),
        lambda: Baseline("a", None, None),
        lambda: replace(FOUR.priced_for, cluster="c"),
        lambda: replace(FOUR.priced_for, lengths_digest="A" * 64),
        lambda: replace(FOUR.priced_for, tokens_per_step=0),
        lambda: replace(FOUR.priced_for, memory_limit_bytes_per_rank=1.5),
    ],
)
def test_illegal_parts(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_enumerations_print_as_their_words() -> None:
    assert [str(member) for kind in (Status, Menu) for member in kind] == [
        "optimal_within_gap",
        "feasible",
        "time_limit",
        "executable",
        "all",
    ]
