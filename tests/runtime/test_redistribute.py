"""The router on simulated ranks, against whole arrays cut by an independent oracle."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.layout import Layout, Select
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Move
from shardwise.ir.redistribution import step_bytes
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout
from shardwise.runtime.redistribute import Redistribution, Router
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.layout_oracle import layouts, meshes, shapes
from tests.support.step_oracle import holds, place

L, V = Layout.parse, ValueLayout.parse
CPU = torch.device("cpu")


def routers(mesh):
    """A function that runs `work(router)` on every rank of a mesh, all its groups declared."""
    torch.set_num_threads(1)
    names = mesh.axis_names
    subsets = [
        tuple(n for i, n in enumerate(order) if bits >> i & 1)
        for order in (names, tuple(sorted(names)), names[::-1])
        for bits in range(1, 2 ** len(names))
    ]
    groups = tuple(g for axes in dict.fromkeys(subsets) for g in mesh.groups(axes))

    def run(work):
        def rank(communicator):
            communicator.declare_groups(groups)
            with communicator.recording() as log:
                result = work(Router(mesh, communicator, CPU))
            return result, [record.message_bytes for record in log]

        return run_ranks(mesh.world_size, rank)

    return run


@st.composite
def routes(draw):
    mesh, shape = draw(meshes(max_axes=3, max_ranks=6)), draw(shapes)
    return mesh, shape, draw(layouts(mesh, shape)), draw(layouts(mesh, shape))


@settings(max_examples=150)
@given(routes(), st.booleans())
def test_every_rank_gets_what_the_target_says(case, strided):
    mesh, shape, source, target = case
    whole = np.arange(1, math.prod(shape) + 1, dtype=float).reshape(shape)
    parts = place(whole, source, mesh, np.random.default_rng(0))

    def work(router):
        x = torch.from_numpy(parts[router.rank].copy())
        if strided:  # memory in another order, as a transpose or an expanded gradient has it
            order = list(reversed(range(x.dim())))
            x = x.permute(order).contiguous().permute(order)
        before = x.clone()
        result = router.run(x, source, target, shape)
        assert torch.equal(x, before), "the input was written to"
        return result.numpy()

    results = routers(mesh)(work)
    assert holds([part for part, _ in results], whole, target, mesh)
    steps = [step for step in lower(source, target, mesh) if not step.is_local]
    largest = [max(sizes) for sizes in zip(*(sent for _, sent in results), strict=True)]
    assert largest == [step_bytes(step, shape, 8, mesh) for step in steps]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("x0:I(0,0:3/1:4)", "x0:P"), ("x0:I(0,0:3/1:4)", "x0:I(0,0:3/1:4,partial)"),
        ("x0:I(0,0:3/1:4,partial)", "R"), ("R", "x0:I(0,0:4/0:4,partial)"),
        ("x0:I(0,0:4/2:4)", "R"), ("x0:P", "x0:I(0,0:2/1:4)"), ("R", "x0:P(max)"),
        ("x0:S(0)", "x0:P(min)"), ("x0:P(max)", "x0:P"), ("x0:S(0,outer=2)", "x0:P"),
    ],
)  # fmt: skip
def test_values_become_addends_and_back(source, target):
    mesh, shape = Mesh.parse("x0=2@l"), (4, 3)
    whole = np.arange(1, 13, dtype=float).reshape(shape)
    parts = place(whole, L(source), mesh, np.random.default_rng(0))
    results = routers(mesh)(
        lambda router: router.run(
            torch.from_numpy(parts[router.rank].copy()), L(source), L(target), shape
        ).numpy()
    )
    assert holds([part for part, _ in results], whole, L(target), mesh)


def test_gradients_in_strided_memory_are_packed():
    """A sum's gradient is one number expanded, a slice's skips elements."""
    mesh = Mesh.parse("x0=2@l")

    def work(router):
        expanded = router.run(torch.ones(()).expand(3), L("x0:S(0)"), L("R"), (6,))
        skipping = router.run(torch.arange(6.0)[::2], L("x0:S(0)"), L("R"), (6,))
        return expanded.tolist(), skipping.tolist()

    for (expanded, skipping), _ in routers(mesh)(work):
        assert expanded == [1.0] * 6 and skipping == [0.0, 2.0, 4.0] * 2


MOVES = [
    ("x0:S(1)", "R | x0:P"), ("x0:S(1)", "R"), ("R", "R | x0:P"), ("x0:P", "R"),
    ("x0:P", "x0:S(0)"), ("R", "x0:S(1)"), ("x0:S(0)", "x0:S(1)"), ("R", "x0:P"),
    ("x0:P", "R | x0:P"), ("x0:S(0) data:S(0)", "data:S(0) | x0:P data:S(0)"),
    ("x0:S(1,outer=2)", "R"), ("x0:P data:P", "x0:S(0) data:S(0)"),
    ("x0:S(0) data:S(1)", "x0:S(1) data:S(0)"), ("x0:S(1,sections=2/6)", "R | x0:P"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_the_backward_of_a_move_is_its_transpose(source, target):
    """<y, A x> = <A' y, x> for the linear map A from global value to global value: the identity."""
    mesh, shape = Mesh.parse("x0=2@l data=2@l"), (4, 8)
    move = Move("m", "x", TensorSpec(shape, "float64"), V(source), V(target), True)
    rng = np.random.default_rng(1)
    value, cotangent = rng.integers(-9, 9, (2, *shape)).astype(float)
    parts = place(value, move.source.forward, mesh, rng)
    given_gradient = place(cotangent, move.target.gradient, mesh, rng)

    def work(router):
        x = torch.from_numpy(parts[router.rank].copy()).requires_grad_()
        y = Redistribution(move, router, ())(x)
        y.backward(torch.from_numpy(given_gradient[router.rank].copy()))
        return y.detach().numpy(), x.grad.numpy()

    results = [result for result, _ in routers(mesh)(work)]
    assert holds([y for y, _ in results], value, move.target.forward, mesh)
    assert holds([g for _, g in results], cotangent, move.source.gradient, mesh)


def test_a_move_that_moves_nothing_is_a_node_of_its_own():
    """R -> R' must not hand out its input: its gradient is reduced, the input's is not."""
    mesh = Mesh.parse("x0=2@l")
    move = Move("m", "x", TensorSpec((2,), "float64"), V("R"), V("R | x0:P"), True)

    def work(router):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        y = Redistribution(move, router, ())(x)
        (y * (1.0 + router.rank) + x).sum().backward()
        return x.grad.tolist()

    assert [g for g, _ in routers(mesh)(work)] == [[4.0, 4.0]] * 2


def test_values_without_gradient_are_moved_off_the_graph():
    mesh = Mesh.parse("x0=2@l")
    move = Move("m", "x", TensorSpec((2,), "int64"), V("x0:S(0)"), V("R"), False)
    results = routers(mesh)(
        lambda router: Redistribution(move, router, ("S",))(torch.tensor([router.rank]), 2).tolist()
    )
    assert [value for value, _ in results] == [[0, 1], [0, 1]]


def test_sums_take_any_declared_group_of_the_same_ranks():
    """Partials are in no order, so one group of the ranks is enough for every one."""
    mesh = Mesh.parse("x0=2@l x1=2@l")

    def rank(communicator):
        communicator.declare_groups(((0, 2, 1, 3),))
        router = Router(mesh, communicator, CPU)
        return router.run(torch.ones(1), L("x0:P x1:P"), L("R"), (1,)).item()

    assert run_ranks(4, rank) == [4.0] * 4


def test_a_layout_that_does_not_fit_is_refused():
    mesh = Mesh((*Mesh.parse("x0=2@l").axes,))
    layout = Layout((("x0", Select(0, ((0, 2), (2, 3)))),))
    with pytest.raises(Exception) as error:
        routers(mesh)(lambda router: router.run(torch.ones(4), L("R"), layout, (4,)))
    assert isinstance(error.value.__cause__, InvalidValueError)
