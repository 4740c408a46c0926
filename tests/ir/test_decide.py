"""What the axes decide together, and what no strategy may compute."""

import pytest

from shardwise.ir.argument import Ref
from shardwise.ir.axis_state import ADDEND, WHOLE, Sharded
from shardwise.ir.decide import batch_degree, decide, parts, settings
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.rules import Operand
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.tensor import TensorSpec

MESH = Mesh.parse("x0=2@l x1=2@l data=2@l")
TWO = Strategy("tensor", (("x0", Role.TENSOR), ("x1", Role.TENSOR), ("data", Role.BATCH)), (), ())


def linear(width):
    """Decisions for x[B, S, 8] w[width, 8]."""
    specs = [TensorSpec.parse("float32[B, S, 8]"), TensorSpec.parse(f"float32[{width}, 8]")]
    out = TensorSpec.parse(f"float32[B, S, {width}]")
    operator = Operator("op", "aten.linear.default", (Ref("x"), Ref("w")), (), (out,))
    operands = [
        (
            Operand(("args", 0), specs[0], state, True, False),
            Operand(("args", 1), specs[1], WHOLE, True, True),
        )
        for state in (WHOLE, WHOLE, Sharded(0))
    ]
    setting = settings(TWO, MESH)
    return decide(operator, operands, setting, MESH), setting


def test_axes_cut_a_width_together_where_both_divide_it():
    decisions, setting = linear(8)
    assert [d.writes for d in decisions] == [(Sharded(2),), (Sharded(2),), (Sharded(0),)]
    assert parts(decisions, setting) == 8


def test_the_last_axis_gives_way_where_they_do_not():
    """Each divides 6, both together do not: parts would be unequal."""
    decisions, setting = linear(6)
    assert [d.writes for d in decisions] == [(Sharded(2),), (WHOLE,), (WHOLE,)]
    assert parts(decisions, setting) == 2


def test_an_axis_without_a_role_replicates():
    one = Strategy("ulysses", (("x0", Role.SEQUENCE), ("data", Role.BATCH)), (), ())
    roles = [(s.axis, s.size, s.role, s.sequence_home) for s in settings(one, MESH)]
    assert roles == [
        ("x0", 2, Role.SEQUENCE, True),
        ("x1", 2, Role.REPLICATE, False),
        ("data", 2, Role.BATCH, False),
    ]
    assert batch_degree(one, MESH) == 2


def test_addends_alone_are_no_share_of_work():
    """An operator that only passes addends on runs whole on every rank."""
    spec = TensorSpec.parse("float32[B, 8]")
    operator = Operator("op", "aten.transpose.int", (Ref("x"), 0, 1), (), (spec,))
    operand = Operand(("args", 0), spec, ADDEND, True, False)
    setting = settings(TWO, MESH)[:1]
    decisions = decide(operator, [(operand,)], setting, MESH)
    assert decisions[0].writes == (ADDEND,) and parts(decisions, setting) == 1


@pytest.mark.parametrize(
    ("kind", "args", "random"),
    [
        ("aten.dropout.default", (Ref("x"), 0.1, True), True),
        ("aten.dropout.default", (Ref("x"), 0.1, False), False),
        ("aten.dropout.default", (Ref("x"), 0.0, True), False),
        ("aten.scaled_dot_product_attention.default", (*[Ref("x")] * 3, None, 0.1), True),
        ("aten.scaled_dot_product_attention.default", (*[Ref("x")] * 3, None, 0.0), False),
    ],
)
def test_random_numbers_have_no_sharded_form(kind, args, random):
    spec = TensorSpec.parse("float32[B, 4, S, 8]")
    operator = Operator("op", kind, args, (), (spec,), "layers.0", "model.py:7")
    count = sum(isinstance(a, Ref) for a in args)
    operands = tuple(Operand(("args", i), spec, WHOLE, True, False) for i in range(count))
    if random:
        with pytest.raises(UnsupportedError, match=r"model\.py:7.*probability 0\.1.*set the dropo"):
            decide(operator, [operands] * 3, settings(TWO, MESH), MESH)
        with pytest.raises(UnsupportedError):  # on one rank too: recomputation draws again
            decide(operator, [], (), Mesh(()))
    else:
        decide(operator, [operands] * 3, settings(TWO, MESH), MESH)
