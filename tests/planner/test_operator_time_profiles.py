"""Which curves of a measured profile an operator is priced with."""

from dataclasses import replace

import pytest

from shardwise.ir import flops
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.program import Call
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout
from shardwise.planner.operator_time import OperatorTime
from tests.support.profiles import hardware, software

WHOLE = ValueLayout.parse("R")


def curve(y, unit="FLOP"):
    """Efficiency that doubles from 1e6 to 1e8, ends flat."""
    return Curve((1e6, 1e8), (y, 2 * y), unit, "ratio", "test")


def machine(device="cpu", **more):
    base = hardware("cpu-gloo")
    kept = tuple((key, value) for key, value in base.efficiency if key in ("matmul", "memory"))
    return replace(
        base, device=device, efficiency=(*kept, ("attention", curve(0.1)), *more.items())
    )


def call_of(kind, specs, output, args, parts=1, needs_gradient=True):
    operands = tuple(TensorSpec.parse(text) for text in specs)
    operator = Operator("y", kind, args, (), (TensorSpec.parse(output),))
    operator = replace(
        operator, flops=flops.flops(operator, operands), moved_bytes=flops.moved(operator, operands)
    )
    return Call(
        operator, (WHOLE,) * len(operands), operands, (WHOLE,), parts, needs_gradient=needs_gradient
    )


def attention(documents, heads, length, size, parts=1):
    text = f"float32[{documents}, {heads}, {length}, {size}]"
    args = (Ref("q"), Ref("k"), Ref("v"), None, 0.0, True)
    kind = "aten.scaled_dot_product_attention.default"
    return call_of(kind, [text] * 3, text, args, parts)


def seconds(one, call):
    free = replace(software("torch-cpu"), launch_floor_s=Constant(0, "s", "test"))
    if one.device != "cpu":
        free = replace(free, device=one.device)
    return OperatorTime(one, free).seconds(call, (True,) * 3, {}, Mesh(()))


def test_attention_of_measured_head_sizes_is_priced_by_head():
    measured = {
        "attention.d16": curve(0.01), "attention.d64": curve(0.04),
        "attention.backward.d16": curve(0.02), "attention.backward.d64": curve(0.05),
    }  # fmt: skip
    one = machine(**measured)
    for size, key in ((16, "d16"), (24, "d16"), (48, "d64"), (128, "d64")):
        call = attention(3, 4, 1024, size, parts=2)
        alone = float(attention(1, 1, 1024, size).operator.flops)
        expected = 6 * one.compute_s(f"attention.{key}", "float32", alone)
        back = 6 * one.compute_s(f"attention.backward.{key}", "float32", 2.5 * alone)
        assert seconds(one, call) == (pytest.approx(expected), pytest.approx(back))
    gpu = replace(one, device="cuda")  # all heads at once
    call = attention(3, 4, 1024, 64)
    expected = gpu.compute_s("attention.d64", "float32", float(call.operator.flops))
    assert seconds(gpu, call)[0] == pytest.approx(expected)


def test_without_measured_head_sizes_of_both_passes_attention_is_priced_by_call():
    one = machine(**{"attention.d64": curve(0.04)})
    call = attention(3, 4, 1024, 64)
    expected = one.compute_s("attention", "float32", float(call.operator.flops))
    assert seconds(one, call)[0] == pytest.approx(expected)


def test_a_backward_has_its_own_curve_where_there_is_one():
    text = "float32[1000, 1000]"
    call = call_of("aten.silu.default", [text], text, (Ref("x"),))
    plain = machine(**{"memory.silu": curve(0.1, "bytes")})
    forward, backward = OperatorTime(plain, software("torch-cpu")).seconds(
        call, (True,), {}, Mesh(())
    )
    assert forward == pytest.approx(plain.memory_s(8e6, "memory.silu"))
    assert backward == pytest.approx(plain.memory_s(12e6, "memory.silu"))
    more = {"memory.silu": curve(0.1, "bytes"), "memory.silu.backward": curve(0.03, "bytes")}
    one = machine(**more)
    again = OperatorTime(one, software("torch-cpu")).seconds(call, (True,), {}, Mesh(()))
    assert again == (forward, pytest.approx(one.memory_s(12e6, "memory.silu.backward")))
