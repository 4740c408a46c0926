"""What crosses the edges between units."""

from shardwise.ir.argument import Ref
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call, Move, Use
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.unit_programs import read_by, unit_programs
from shardwise.ir.value_layout import ValueLayout

SPEC = TensorSpec((2,), "float32")
R, P = ValueLayout.parse("R"), ValueLayout.parse("x0:P")


def call(name, *reads, outputs=1):
    operator = Operator(name, "aten.cat.default", (tuple(map(Ref, reads)),), (), (SPEC,) * outputs)
    return Call(operator, (R,) * len(reads), (SPEC,) * len(reads), (R,) * outputs, 1)


def test_reads_and_writes_of_units():
    """x is an input; a is read later, b only inside, c in the same unit and by the outputs."""
    use = Use("w__use1", "w", SPEC, R)
    steps = (
        (use, call("a", "x", "w__use1"), call("b", "a")),
        (Move("a__move1", "a", SPEC, P, R, True), call("c", "a__move1", "x", "c0"), call("d", "c")),
        (call("e", "c", "a", outputs=2),),
    )
    first, second, third = unit_programs(("one", "two", "three"), steps, ("d", "e:1", "x"))
    assert (first.name, first.reads, first.writes) == ("one", ("x",), ("a",))
    assert (second.reads, second.writes) == (("a", "x", "c0"), ("c", "d"))
    assert (third.reads, third.writes) == (("c", "a"), ("e:1",))
    assert (first.steps, second.steps, third.steps) == steps


def test_what_a_step_reads():
    assert read_by(Use("w__use1", "w", SPEC, R)) == ()
    assert read_by(Move("m", "v", SPEC, P, R, False)) == ("v",)
    assert read_by(call("a", "x", "y", "x")) == ("x", "y", "x")
