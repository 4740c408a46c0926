"""ModelFingerprint: built from a graph, compared, printed and parsed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.fingerprint import ModelFingerprint, UnitRun
from shardwise.ir.graph import GraphInput, OperatorGraph, Parameter, Section
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.template import Template, Unit, group_units
from shardwise.ir.tensor import TensorSpec

DIGEST = "0a" * 32
VECTOR = TensorSpec((8,), "float32")
GPT = ModelFingerprint(
    "gpt2", DIGEST, 124439808, (UnitRun("embed"), UnitRun("layers", 12), UnitRun("head"))
)


def chain(layers: int, *, kind: str = "aten.mul.Tensor") -> tuple[OperatorGraph, tuple[Unit, ...]]:
    """`layers` products with a weight each, then a sum; fused, tied, frozen weights beside."""
    names = ["x", *(f"mul{i}" for i in range(layers)), "end"]
    operators = [
        Operator(names[i + 1], kind, (Ref(names[i]), Ref(f"layers.{i}.w")), (), (VECTOR,))
        for i in range(layers)
    ]
    operators.append(Operator("end", "aten.sum.default", (Ref(names[layers]),), (), (VECTOR,)))
    parameters = [Parameter(f"layers.{i}.w", VECTOR) for i in range(layers)]
    parameters.append(Parameter("tied", TensorSpec((3, 5), "float32"), aliases=("again",)))
    parameters.append(Parameter("frozen", TensorSpec((), "float32"), trainable=False))
    parameters += [
        Parameter(
            f"f#{i}", TensorSpec((2, 4), "float32"), section=Section("f", 0, 2 * i, 2 * i + 2)
        )
        for i in range(2)
    ]
    inputs = (GraphInput("x", VECTOR),)
    graph = OperatorGraph(inputs, tuple(parameters), (), tuple(operators), (Ref("end"),))
    units = [Unit(f"layers.{i}", (i, i + 1)) for i in range(layers)]
    return graph, (*units, Unit("head", (layers, layers + 1)))


def fingerprint(layers: int, kind: str = "aten.mul.Tensor") -> ModelFingerprint:
    graph, units = chain(layers, kind=kind)
    return ModelFingerprint.of("chain", graph, units=units, templates=group_units(graph, units))


def test_fingerprint_of_a_graph() -> None:
    found = fingerprint(3)
    assert found.parameter_count == 3 * 8 + 15 + 1 + 16
    assert found.digest == chain(3)[0].digest()
    assert found.units == (UnitRun("layers", 3), UnitRun("head"))
    assert found.unit_count == 4
    assert found.template_names() == ("layers", "layers", "layers", "head")


def test_alternating_templates_are_runs_in_order() -> None:
    graph, units = chain(4)
    even = Template("even", ("f",), DIGEST, ("layers.0", "layers.2", "layers.3"))
    odd = Template("odd", ("f",), DIGEST, ("layers.1", "head"))
    found = ModelFingerprint.of("m", graph, units=units, templates=(even, odd))
    assert found.template_names() == ("even", "odd", "even", "even", "odd")
    assert found.units[2] == UnitRun("even", 2)


def test_templates_hold_each_unit_once() -> None:
    graph, units = chain(2)
    good = group_units(graph, units)
    more = Template("more", ("f",), DIGEST, ("layers.0",))
    unknown = Template("unknown", ("f",), DIGEST, ("other",))
    for templates in (good[1:], (*good, more), (*good, unknown), ()):
        with pytest.raises(InvalidValueError, match="hold each unit"):
            ModelFingerprint.of("m", graph, units=units, templates=templates)
    with pytest.raises(InvalidValueError, match="cover"):
        ModelFingerprint.of("m", graph, units=units[:-1], templates=good)


def test_differences_are_named_coarsest_first() -> None:
    assert fingerprint(3).differences(replace(fingerprint(3), name="other")) == ()
    found = fingerprint(3).differences(fingerprint(4))
    assert found[0] == "parameters 56 -> 64"
    assert found[1] == "units layers*3,head -> layers*4,head"
    assert found[2].startswith("operators ")
    assert len(found) == 3
    found = fingerprint(3).differences(fingerprint(3, "aten.div.Tensor"))
    assert [difference.split()[0] for difference in found] == ["operators"]


def test_text_of_an_example() -> None:
    text = f"gpt2 parameters=124439808 units=embed,layers*12,head digest={DIGEST}"
    assert str(GPT) == text
    assert ModelFingerprint.parse(text) == GPT


NAMES = st.one_of(st.just("layers"), st.text(min_size=1, max_size=5))
RUNS = st.lists(
    st.builds(UnitRun, NAMES, st.integers(1, 99)),
    min_size=1,
    unique_by=lambda run: run.template,
)


@given(NAMES, st.integers(0, 10**13), RUNS)
@settings(deadline=None)
def test_text_round_trips(name: str, count: int, runs: list[UnitRun]) -> None:
    value = ModelFingerprint(name, DIGEST, count, tuple(runs))
    assert ModelFingerprint.parse(str(value)) == value
    assert str(value).isprintable()
    assert [UnitRun.parse(str(run)) for run in runs] == runs


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"digest": "x"},
        {"digest": None},
        {"parameter_count": -1},
        {"parameter_count": 1.0},
        {"units": ()},
        {"units": [UnitRun("a")]},
        {"units": ("a",)},
        {"units": (UnitRun("a"), UnitRun("b"), UnitRun("b", 2))},
    ],
)
def test_broken_values_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        replace(GPT, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", [("", 1), ("a", 0), ("a", True), ("a", 10**9)])
def test_broken_runs_are_refused(arguments: tuple[str, int]) -> None:
    with pytest.raises(InvalidValueError):
        UnitRun(*arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpt2",
        f"gpt2 parameters= units=a digest={DIGEST}",
        f"gpt2 parameters=-1 units=a digest={DIGEST}",
        f"gpt2 parameters=1 units= digest={DIGEST}",
        f"gpt2 parameters=1 units=a,a digest={DIGEST}",
        f"gpt2 parameters=1 units=a*0 digest={DIGEST}",
        f"gpt2 parameters=1 units=a digest={DIGEST[1:]}",
        f"gpt2 parameters=1 units=a digest={DIGEST} ",
        f"gpt2 parameters={'9' * 24} units=a digest={DIGEST}",
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        ModelFingerprint.parse(text)
    with pytest.raises(ParseError):
        UnitRun.parse(f"{text} *")
