"""OperatorGraph: every invariant refuses its breach, queries, digest."""

import copy
import pickle
from dataclasses import replace

import pytest
import sympy

from shardwise.ir.errors import InvalidValueError
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
from shardwise.ir.tensor import TensorSpec

B, S = symbol("B"), symbol("S")
HIDDEN = TensorSpec((B, S, 8), "float32")
SCALAR = TensorSpec((), "float32")
Q, K = (
    Parameter(f"qkv#{what}", TensorSpec((4, 8), "float32"), section=Section("qkv", 0, i, i + 4))
    for what, i in (("q", 0), ("k", 4))
)


def operator(name: str, *args: Argument, outputs: int = 1, flops: object = 0) -> Operator:
    return Operator(
        name,
        "aten.any.default",
        args,
        (),
        (HIDDEN,) * outputs,
        "m",
        "f.py:1",
        sympy.sympify(flops),
    )


GRAPH = OperatorGraph(
    inputs=(GraphInput("x", HIDDEN),),
    parameters=(
        Parameter("w", TensorSpec((8, 8), "float32"), aliases=("head.w",)),
        Q,
        K,
    ),
    constants=(Constant("mean", SCALAR, persistent=True), Constant("lifted", SCALAR)),
    operators=(
        operator("split", Ref("x"), outputs=3, flops=2 * B * S),
        operator("mix", Ref("split", 2), (Ref("w"), Ref("split", 0), Ref("split", 2)), flops=B),
        operator("last", Ref("mix"), Ref("qkv#q"), Ref("lifted"), B * S + 1, flops=5),
    ),
    outputs=(Ref("last"), Ref("split", 1), Ref("last"), Ref("x")),
    symbols=(SymbolRange("B", 1, None), SymbolRange("S", 2, 64)),
    updates=(("mean", Ref("lifted")),),
)


def with_operator(index: int, new: Operator) -> OperatorGraph:
    operators = list(GRAPH.operators)
    operators[index] = new
    return replace(GRAPH, operators=tuple(operators))


def test_producer_and_spec_of_every_kind_of_item() -> None:
    assert GRAPH.producer(Ref("x")) is GRAPH.inputs[0]
    assert GRAPH.producer(Ref("w")) is GRAPH.parameters[0]
    assert GRAPH.producer(Ref("mean")) is GRAPH.constants[0]
    assert GRAPH.producer(Ref("split", 2)) is GRAPH.operators[0]
    assert GRAPH.spec(Ref("split", 2)) == HIDDEN
    assert GRAPH.spec(Ref("mean")) == SCALAR
    for ref in (Ref("nothing"), Ref("split", 3), Ref("x", 1), Ref("head.w")):
        with pytest.raises(InvalidValueError):
            GRAPH.producer(ref)


def test_operators_are_found_by_name() -> None:
    assert GRAPH.operator("mix") is GRAPH.operators[1]
    assert GRAPH.position("last") == 2
    for name in ("x", "w", "nothing"):
        with pytest.raises(InvalidValueError, match="no operator"):
            GRAPH.operator(name)


def test_users_are_in_order_and_once() -> None:
    assert GRAPH.users("split") == (GRAPH.operators[1],)
    assert GRAPH.users("x") == (GRAPH.operators[0],)
    assert GRAPH.users("qkv#k") == ()
    assert GRAPH.users("last") == ()
    two = with_operator(2, operator("last", Ref("mix"), Ref("x")))
    assert [user.name for user in two.users("x")] == ["split", "last"]
    with pytest.raises(InvalidValueError, match="no item"):
        GRAPH.users("nothing")


def test_total_flops_is_the_sum() -> None:
    assert GRAPH.total_flops() == 2 * B * S + B + 5


def test_equal_graphs_are_equal_values() -> None:
    twin = replace(GRAPH)
    assert twin == GRAPH
    assert hash(twin) == hash(GRAPH)
    assert replace(GRAPH, outputs=(Ref("x"),)) != GRAPH
    for other in (pickle.loads(pickle.dumps(GRAPH)), copy.deepcopy(GRAPH)):
        assert other == GRAPH
        assert other.users("split") == GRAPH.users("split")


UNDECLARED = TensorSpec((symbol("U"),), "int8")
BREACHES: dict[str, dict[str, object]] = {
    "list": {"operators": list(GRAPH.operators)},
    "wrong item": {"inputs": (Ref("x"),)},
    "no output": {"outputs": ()},
    "unknown output": {"outputs": (Ref("nothing"),)},
    "output index": {"outputs": (Ref("split", 3),)},
    "operator twice": {"operators": (*GRAPH.operators, operator("mix", Ref("x")))},
    "input like operator": {"inputs": (*GRAPH.inputs, GraphInput("mix", HIDDEN))},
    "input like parameter": {"inputs": (*GRAPH.inputs, GraphInput("w", HIDDEN))},
    "constant like input": {"constants": (*GRAPH.constants, Constant("x", SCALAR))},
    "alias like input": {"inputs": (*GRAPH.inputs, GraphInput("head.w", HIDDEN))},
    "alias like operator": {"operators": (*GRAPH.operators, operator("head.w", Ref("x")))},
    "alias twice": {
        "parameters": (
            *GRAPH.parameters,
            Parameter("v", SCALAR, aliases=("head.w",)),
        )
    },
    "use before definition": {"operators": GRAPH.operators[::-1]},
    "self use": {"operators": (operator("split", Ref("split"), outputs=3), *GRAPH.operators[1:])},
    "symbol twice": {"symbols": (*GRAPH.symbols, SymbolRange("S", 3, 4))},
    "symbol of an input": {"symbols": GRAPH.symbols[:1]},
    "symbol of an unread input": {"inputs": (*GRAPH.inputs, GraphInput("y", UNDECLARED))},
    "update of a parameter": {"updates": (("w", Ref("x")),)},
    "update of nothing": {"updates": (("nothing", Ref("x")),)},
    "update of no name": {"updates": ((3, Ref("x")),)},
    "update with another spec": {"updates": (("mean", Ref("x")),)},
    "update with nothing": {"updates": (("mean", Ref("nothing")),)},
    "update twice": {"updates": GRAPH.updates * 2},
    "update is no pair": {"updates": (("mean",),)},
    "sections out of order": {"parameters": (GRAPH.parameters[0], K, Q)},
    "section missing": {"parameters": (GRAPH.parameters[0], K)},
    "section's source is there": {"parameters": (Parameter("qkv", SCALAR), *GRAPH.parameters)},
    "section's source is an alias": {
        "parameters": (Parameter("v", SCALAR, aliases=("qkv",)), *GRAPH.parameters)
    },
    "section not trainable": {"parameters": (GRAPH.parameters[0], Q, replace(K, trainable=False))},
    "section of another dtype": {
        "parameters": (GRAPH.parameters[0], Q, replace(K, spec=TensorSpec((4, 8), "float16")))
    },
    "section of another size": {
        "parameters": (GRAPH.parameters[0], Q, replace(K, spec=TensorSpec((4, 9), "float32")))
    },
    "section on another dim": {
        "parameters": (
            GRAPH.parameters[0],
            Q,
            replace(K, spec=TensorSpec((8, 4), "float32"), section=Section("qkv", 1, 4, 8)),
        )
    },
}


@pytest.mark.parametrize("breach", BREACHES)
def test_each_invariant_refuses_its_breach_on_one_line(breach: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        replace(GRAPH, **BREACHES[breach])  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


U = symbol("U")
USES = {
    "argument": replace(GRAPH.operators[0], args=(Ref("x"), (1, U))),
    "keyword": replace(GRAPH.operators[0], kwargs=(("size", U),)),
    "output": replace(GRAPH.operators[0], outputs=(TensorSpec((U,), "int8"), HIDDEN, HIDDEN)),
    "flops": replace(GRAPH.operators[0], flops=U),
    "moved": replace(GRAPH.operators[0], moved_bytes=U * B),
    "saved": replace(GRAPH.operators[0], saved_bytes=U + 1),
}


@pytest.mark.parametrize("use", USES)
def test_undeclared_symbols_are_refused_everywhere(use: str) -> None:
    with pytest.raises(InvalidValueError, match=r"'split' uses the symbol\(s\) U"):
        with_operator(0, USES[use])
    declared = (*GRAPH.symbols, SymbolRange("U", 1, 2))
    operators = (USES[use], *GRAPH.operators[1:])
    assert replace(GRAPH, symbols=declared, operators=operators).operators[0] is USES[use]


def test_errors_name_reader_and_reference() -> None:
    with pytest.raises(InvalidValueError, match="'last' reads %nothing, which no item before"):
        with_operator(2, operator("last", Ref("nothing")))
    with pytest.raises(InvalidValueError, match=r"'last' reads %split:3, but 'split' has 3 output"):
        with_operator(2, operator("last", Ref("split", 3)))


def renamed(graph: OperatorGraph) -> OperatorGraph:
    """The same computation under other names of operators and of the lifted constant."""
    items: list[Item] = [*graph.operators, graph.constants[1]]
    names = {item.name: f"renamed {item.name}" for item in items}

    def change(ref: Ref) -> Ref:
        return Ref(names.get(ref.name, ref.name), ref.index)

    return replace(
        graph,
        constants=(graph.constants[0], replace(graph.constants[1], name=names["lifted"])),
        operators=tuple(
            replace(item.with_refs(change), name=names[item.name], source="other.py:9", flops=B)
            for item in graph.operators
        ),
        outputs=tuple(map(change, graph.outputs)),
        updates=tuple((name, change(ref)) for name, ref in graph.updates),
    )


def test_digest_ignores_unstable_names_sources_and_costs() -> None:
    assert renamed(GRAPH) != GRAPH
    assert renamed(GRAPH).digest() == GRAPH.digest()
    assert len(GRAPH.digest()) == 64


MEANINGS: dict[str, OperatorGraph] = {
    "kind": with_operator(2, replace(GRAPH.operators[2], kind="aten.other.default")),
    "arguments": with_operator(2, replace(GRAPH.operators[2], args=GRAPH.operators[2].args[:3])),
    "type of an argument": with_operator(0, replace(GRAPH.operators[0], args=(Ref("x"), 1))),
    "same, as bool": with_operator(0, replace(GRAPH.operators[0], args=(Ref("x"), True))),
    "index": with_operator(
        1, GRAPH.operators[1].with_refs(lambda ref: Ref(ref.name, 1) if ref.index else ref)
    ),
    "output read": with_operator(1, operator("mix", Ref("split", 1), (Ref("w"),))),
    "module path": with_operator(1, replace(GRAPH.operators[1], module_path="n")),
    "dtype": with_operator(2, replace(GRAPH.operators[2], outputs=(TensorSpec((B,), "int8"),))),
    "keyword": with_operator(2, replace(GRAPH.operators[2], kwargs=(("out", None),))),
    "outputs": replace(GRAPH, outputs=GRAPH.outputs[1:]),
    "updates": replace(GRAPH, updates=()),
    "input": replace(GRAPH, inputs=(*GRAPH.inputs, GraphInput("y", SCALAR))),
    "parameter": replace(GRAPH, parameters=(*GRAPH.parameters, Parameter("v", SCALAR))),
    "frozen": replace(
        GRAPH, parameters=(replace(GRAPH.parameters[0], trainable=False), *GRAPH.parameters[1:])
    ),
    "untied": replace(
        GRAPH, parameters=(replace(GRAPH.parameters[0], aliases=()), *GRAPH.parameters[1:])
    ),
    "name of a buffer": replace(
        GRAPH,
        constants=(replace(GRAPH.constants[0], name="variance"), GRAPH.constants[1]),
        updates=(("variance", Ref("lifted")),),
    ),
    "persistent": replace(
        GRAPH, constants=(replace(GRAPH.constants[0], persistent=False), GRAPH.constants[1])
    ),
    "constant's shape": replace(
        GRAPH,
        constants=(
            GRAPH.constants[0],
            replace(GRAPH.constants[1], spec=HIDDEN.at({"B": 1, "S": 1})),
        ),
        updates=(),
    ),
}


def test_digest_does_not_tell_for_which_sizes_a_graph_was_traced() -> None:
    longer = replace(GRAPH, symbols=(GRAPH.symbols[0], SymbolRange("S", 2, 65)))
    assert longer != GRAPH
    assert longer.digest() == GRAPH.digest()


def test_digest_tells_every_change_of_meaning() -> None:
    digests = {name: graph.digest() for name, graph in MEANINGS.items()}
    digests["the graph itself"] = GRAPH.digest()
    assert len(set(digests.values())) == len(digests)
