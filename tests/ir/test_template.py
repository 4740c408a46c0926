"""Units, templates and the digest of a range: equal for identical layers and only for them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import (
    Constant,
    GraphInput,
    Item,
    OperatorGraph,
    Parameter,
    Section,
    SymbolRange,
)
from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.template import (
    Template,
    Unit,
    check_cover,
    check_digest,
    group_units,
    range_digest,
)
from shardwise.ir.tensor import TensorSpec

B, S = symbol("B"), symbol("S")
HIDDEN = TensorSpec((B, S, 8), "float32")
WEIGHT = TensorSpec((8, 8), "float32")
SYMBOLS = (SymbolRange("B", 1, None), SymbolRange("S", 2, 64))
DIGEST = "0" * 64


@dataclass(frozen=True)
class Layer:
    """One layer of the model below; a variant changes one thing."""

    kind: str = "aten.mul.Tensor"
    scale: Argument = 0.5
    weight: TensorSpec = WEIGHT
    hidden: TensorSpec = HIDDEN
    trainable: bool = True
    residual: str = "input"
    """What the layer adds at its end: "input", or "middle" of itself."""
    first: int = 0
    """Which output of the split goes through the weight."""
    table: str = "cos"
    crossed: bool = False
    """Whether the two products are concatenated the other way round."""
    again: int = 0
    """Which of the two weights is read once more."""
    mask: bool = False
    """Whether it reads the graph input itself too."""


def model(layers: list[Layer], *, extra: tuple[str, ...] = ()) -> OperatorGraph:
    """Embedding-like start, layers, end. `extra`: values that the end reads as well."""
    parameters, operators = [], []

    def call(
        name: str, kind: str, *args: Argument, spec: TensorSpec = HIDDEN, count: int = 1
    ) -> Ref:
        operators.append(Operator(name, kind, args, (), (spec,) * count, f"m.{name}", "m.py:1"))
        return Ref(name)

    hidden = call("embed", "aten.embedding.default", Ref("x"))
    for i, layer in enumerate(layers):
        names = [f"layers.{i}.w", f"layers.{i}.v"]
        parameters += [Parameter(name, layer.weight, layer.trainable) for name in names]
        before, after = hidden, layer.hidden
        split = call(f"split{i}", "aten.split.Tensor", hidden, 4, spec=after, count=2)
        first = Ref(split.name, layer.first)
        first = call(f"linear{i}", "aten.linear.default", first, Ref(names[0]), spec=after)
        second = Ref(split.name, 1)
        second = call(f"linear_b{i}", "aten.linear.default", second, Ref(names[1]), spec=after)
        pair = (second, first) if layer.crossed else (first, second)
        middle = call(f"cat{i}", "aten.cat.default", pair, Ref(names[layer.again]), spec=after)
        middle = call(f"mul{i}", layer.kind, middle, layer.scale, Ref(layer.table), spec=after)
        if layer.mask:
            middle = call(f"mask{i}", "aten.mul.Tensor", middle, Ref("x"), spec=after)
        other = before if layer.residual == "input" else first
        hidden = call(f"add{i}", "aten.add.Tensor", middle, other, spec=after)
    call("end", "aten.stack.default", (hidden, *(Ref.parse(f"%{name}") for name in extra)))
    return OperatorGraph(
        (GraphInput("x", HIDDEN),),
        tuple(parameters),
        (Constant("cos", WEIGHT), Constant("sin", WEIGHT), Constant("kept", WEIGHT, True)),
        tuple(operators),
        (Ref("end"),),
        SYMBOLS,
    )


def units_of(graph: OperatorGraph, layers: list[Layer]) -> tuple[Unit, ...]:
    units = [Unit("embed", (0, 1), "m.embed")]
    for i, layer in enumerate(layers):
        start = units[-1].operators[1]
        units.append(Unit(f"layers.{i}", (start, start + 6 + layer.mask), f"layers.{i}"))
    return (*units, Unit("head", (units[-1].operators[1], len(graph.operators))))


def digests(layers: list[Layer], **kwargs: tuple[str, ...]) -> list[str]:
    graph = model(layers, **kwargs)
    return [range_digest(graph, *unit.operators) for unit in units_of(graph, layers)[1:-1]]


VARIANTS = [
    Layer(),
    Layer(kind="aten.div.Tensor"),
    Layer(scale=1),
    Layer(scale=True),
    Layer(scale=1.0),
    Layer(scale=(0.5,)),
    Layer(weight=TensorSpec((8, 9), "float32")),
    Layer(weight=TensorSpec((8, 8), "bfloat16")),
    Layer(hidden=TensorSpec((B, S, 9), "float32")),
    Layer(trainable=False),
    Layer(residual="middle"),
    Layer(first=1),
    Layer(crossed=True),
    Layer(again=1),
    Layer(table="kept"),
    Layer(mask=True),
]


def test_identical_layers_have_equal_digests() -> None:
    for variant in VARIANTS:
        found = digests([Layer(), Layer(), variant, Layer(), variant, Layer()])
        assert found[0] == found[1]
        if variant.hidden == HIDDEN:
            assert found[2] == found[4]
            assert found[0] == found[3] == found[5]
        else:
            assert found[0] not in (found[3], found[5])


def test_each_difference_changes_the_digest() -> None:
    found = [digests([Layer(), variant, Layer()])[1] for variant in VARIANTS]
    assert len(set(found)) == len(VARIANTS)


def test_names_of_constants_do_not_matter() -> None:
    assert len(set(digests([Layer(), Layer(table="sin"), Layer()]))) == 1


@given(st.lists(st.sampled_from(VARIANTS[:8]), min_size=1, max_size=6), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_renaming_and_shifting_keep_digests(layers: list[Layer], seed: int) -> None:
    graph = model(layers)
    items: list[Item] = [*graph.operators, *graph.parameters, *graph.constants]
    numbers = list(range(len(items)))
    random.Random(seed).shuffle(numbers)
    names = {item.name: f"n{number}" for item, number in zip(items, numbers, strict=True)}

    def change(ref: Ref) -> Ref:
        return Ref(names.get(ref.name, ref.name), ref.index)

    shifted = Operator("shift", "aten.neg.default", (Ref("x"),), (), (HIDDEN,))
    renamed = replace(
        graph,
        parameters=tuple(replace(item, name=names[item.name]) for item in graph.parameters),
        constants=tuple(replace(item, name=names[item.name]) for item in graph.constants),
        operators=(
            shifted,
            *(
                replace(item.with_refs(change), name=names[item.name], module_path="z", source="z")
                for item in graph.operators
            ),
        ),
        outputs=tuple(map(change, graph.outputs)),
    )
    for unit in units_of(graph, layers):
        start, stop = unit.operators
        assert range_digest(graph, start, stop) == range_digest(renamed, start + 1, stop + 1)
    assert group_units(graph, units_of(graph, layers))[0].units == ("embed",)


def test_costs_do_not_matter() -> None:
    graph = model([Layer()])
    priced = replace(graph, operators=tuple(replace(item, flops=B) for item in graph.operators))
    assert range_digest(priced, 1, 7) == range_digest(graph, 1, 7)


def test_values_read_outside_belong_to_the_digest() -> None:
    layers = [Layer()] * 3
    plain = digests(layers)
    for name in ("linear1", "split1"):
        found = digests(layers, extra=(name,))
        assert found[0] == plain[0] == found[2]
        assert found[1] != plain[1]
    outputs = model(layers)
    outputs = replace(outputs, outputs=(Ref("end"), Ref("linear1")))
    assert range_digest(outputs, 7, 13) == digests(layers, extra=("linear1",))[1]
    assert digests(layers, extra=("split1",))[1] != digests(layers, extra=("linear1",))[1]


def test_which_output_is_read_outside_counts() -> None:
    layers = [Layer()] * 2
    graph = model(layers)
    zero, one = (
        range_digest(replace(graph, outputs=(Ref("end"), Ref("split0", index))), 1, 7)
        for index in (0, 1)
    )
    assert zero != one
    zero, one = (digests(layers, extra=(name,))[0] for name in ("split0", "split0:1"))
    assert zero != one
    assert (
        digests(layers, extra=("linear0", "split1:1"))[0] == digests(layers, extra=("linear0",))[0]
    )


def test_parameters_shared_with_the_outside_count() -> None:
    layers = [Layer()] * 3
    tied = digests(layers, extra=("layers.1.w",))
    assert tied[0] == tied[2] == digests(layers)[0]
    assert tied[1] != tied[0]
    everywhere = digests(layers, extra=("layers.0.w", "layers.1.w", "layers.2.w"))
    assert len(set(everywhere)) == 1


def test_one_parameter_twice_is_not_two() -> None:
    graph = model([Layer(), Layer()])
    twice = replace(
        graph,
        operators=tuple(
            item.with_refs(lambda ref: Ref("layers.0.w") if ref.name == "layers.0.v" else ref)
            for item in graph.operators
        ),
    )
    assert range_digest(twice, 1, 7) != range_digest(graph, 1, 7)
    assert range_digest(twice, 7, 13) == range_digest(graph, 7, 13)


def with_sections(change: Callable[[str, int], Section | None]) -> OperatorGraph:
    """Two layers whose w and v may be sections."""
    graph = model([Layer(), Layer()])
    parameters, names = [], {}
    for layer in (0, 1):
        for part, what in enumerate("wv"):
            section = change(what, layer)
            parameter = graph.parameters[2 * layer + part]
            name = parameter.name if section is None else f"{section.source}#{what}"
            names[parameter.name] = name
            parameters.append(replace(parameter, name=name, section=section))
    operators = tuple(
        item.with_refs(lambda ref: Ref(names.get(ref.name, ref.name), ref.index))
        for item in graph.operators
    )
    return replace(graph, parameters=tuple(parameters), operators=operators)


def test_sections_of_one_weight_are_not_sections_of_two() -> None:
    def one(what: str, layer: int) -> Section:
        return Section(f"{layer}.qkv", 0, *((0, 8) if what == "w" else (8, 16)))

    fused = with_sections(one)
    mixed = with_sections(lambda what, layer: one(what, layer) if layer else None)
    assert range_digest(fused, 1, 7) == range_digest(fused, 7, 13)
    assert range_digest(mixed, 7, 13) == range_digest(fused, 7, 13)
    assert range_digest(mixed, 1, 7) != range_digest(fused, 1, 7)
    w, v, *others = fused.parameters
    start = Parameter("other#start", WEIGHT, section=Section("other", 0, 0, 8))
    moved = replace(v, name="other#v", section=Section("other", 0, 8, 16))
    apart = replace(
        fused,
        parameters=(w, start, moved, *others),
        operators=tuple(
            item.with_refs(lambda ref: Ref(moved.name) if ref.name == v.name else ref)
            for item in fused.operators
        ),
    )
    assert range_digest(apart, 1, 7) != range_digest(fused, 1, 7)
    assert range_digest(apart, 7, 13) == range_digest(fused, 7, 13)


@pytest.mark.parametrize("ends", [(0, 0), (2, 1), (-1, 1), (0, 99)])
def test_ranges_are_inside_the_graph(ends: tuple[int, int]) -> None:
    with pytest.raises(InvalidValueError, match="0 <= start < stop"):
        range_digest(model([Layer()]), *ends)


def test_group_units_counts_identical_layers() -> None:
    odd = Layer(scale=3)
    layers = [Layer(), odd, Layer(), odd, Layer(), Layer(scale=4)]
    graph = model(layers)
    templates = group_units(graph, units_of(graph, layers))
    assert [(template.name, template.count) for template in templates] == [
        ("embed", 1),
        ("layers", 3),
        ("layers#2", 2),
        ("layers#3", 1),
        ("head", 1),
    ]
    assert templates[1].units == ("layers.0", "layers.2", "layers.4")
    assert templates[1].operators[0] == "aten.split.Tensor"
    assert len(templates[1].operators) == 6
    assert templates[2].digest == range_digest(graph, 7, 13)


def test_units_cover_the_graph_in_order() -> None:
    graph = model([Layer(), Layer()])
    units = units_of(graph, [Layer(), Layer()])
    check_cover(graph, units)
    for broken in (units[1:], units[:-1], units[::-1], (), (units[0], *units)):
        with pytest.raises(InvalidValueError):
            check_cover(graph, broken)
        with pytest.raises(InvalidValueError):
            group_units(graph, broken)
    with pytest.raises(InvalidValueError, match="names of their own"):
        check_cover(graph, (*units[:-1], replace(units[-1], name="embed")))


NAMES = st.one_of(st.just("layers.0"), st.text(min_size=1, max_size=5))


@given(NAMES, st.integers(0, 99), st.integers(1, 99), st.text(max_size=5))
@settings(deadline=None)
def test_units_round_trip(name: str, start: int, length: int, path: str) -> None:
    unit = Unit(name, (start, start + length), path)
    assert Unit.parse(str(unit)) == unit
    assert str(unit).isprintable()


@given(NAMES, st.lists(NAMES, min_size=1), st.lists(NAMES, min_size=1, unique=True))
@settings(deadline=None)
def test_templates_round_trip(name: str, operators: list[str], units: list[str]) -> None:
    template = Template(name, tuple(operators), "0a" * 32, tuple(units))
    assert Template.parse(str(template)) == template
    assert str(template).isprintable()
    assert template.count == len(units)


def test_text_of_examples() -> None:
    assert str(Unit("layers.0", (12, 40), "layers.0")) == "layers.0 = 12:40 module=layers.0"
    assert str(Unit("head", (1, 2))) == "head = 1:2"
    template = Template("layers", ("aten.add.Tensor", "f"), DIGEST, ("layers.0", "layers.1"))
    assert str(template) == (
        f"layers digest={DIGEST} units=layers.0,layers.1 operators=aten.add.Tensor,f"
    )


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (Unit, ("", (0, 1))),
        (Unit, ("u", (1, 1))),
        (Unit, ("u", (-1, 1))),
        (Unit, ("u", (0, 1, 2))),
        (Unit, ("u", [0, 1])),
        (Unit, ("u", (0.0, 1))),
        (Unit, ("u", (0, 1), None)),
        (Template, ("", ("f",), DIGEST, ("u",))),
        (Template, ("t", (), DIGEST, ("u",))),
        (Template, ("t", ("f",), DIGEST, ())),
        (Template, ("t", ["f"], DIGEST, ("u",))),
        (Template, ("t", ("",), DIGEST, ("u",))),
        (Template, ("t", ("f",), DIGEST, ("u", "u"))),
        (Template, ("t", ("f",), "0" * 63, ("u",))),
        (Template, ("t", ("f",), "A" * 64, ("u",))),
    ],
)
def test_broken_values_are_refused(make: type, arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "u",
        "u = 1:1",
        "u = 1:2 module=",
        "u = 1:2 ",
        "u =1:2",
        "t digest=0 units=u operators=f",
        f"t digest={DIGEST} units= operators=f",
        f"t digest={DIGEST} units=u,u operators=f",
        f"t digest={DIGEST} units=u operators=f,",
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    for make in (Unit, Template):
        with pytest.raises(ParseError):
            make.parse(text)


def test_digests_are_hex_of_sha256() -> None:
    check_digest("0123456789abcdef" * 4, "x")
    for digest in (DIGEST + "0", DIGEST[1:] + "g", 0, None):
        with pytest.raises(InvalidValueError, match="x has digest"):
            check_digest(digest, "x")
