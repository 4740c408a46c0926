"""The collectives on simulated and on real ranks: the same results, the same refusals."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.rank_failure import RanksFailedError
from tests.ranks.case import RankContext

LONG_S = 600.0
MOVED = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
SUMMED = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
ORDERED = tuple(dtype for dtype in SUMMED if dtype != torch.complex64)


def tensor_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What `rank` holds: small whole numbers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 7, shape, generator=generator).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat_a, flat_b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return torch.equal(flat_a.view(torch.uint8), flat_b.view(torch.uint8))


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    dtype = tensors[0].dtype
    if op == "sum":
        wide = torch.complex64 if dtype.is_complex else torch.float64
        return torch.stack([x.to(wide) for x in tensors]).sum(0).to(dtype)
    stacked = torch.stack(tensors)
    return stacked.amax(0) if op == "max" else stacked.amin(0)


# ---- every kind, on every dtype, on several groups at once


def every_kind(
    context: RankContext,
    partitions: list[tuple[tuple[int, ...], ...]],
    shapes: list[tuple[int, ...]],
) -> None:
    c = context.communicator
    c.declare_groups(tuple(group for partition in partitions for group in partition))
    for i, (partition, shape) in enumerate(zip(partitions, shapes, strict=True)):
        group = next(group for group in partition if context.rank in group)
        few = (torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn)
        for dtype in MOVED if i == 0 else few:
            check_movement(c, group, shape, dtype)
            for op in ("sum", "max", "min"):
                if dtype in (SUMMED if op == "sum" else ORDERED):
                    check_reduction(c, group, shape, dtype, op)


def check_movement(
    c: Communicator, group: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    place, p = group.index(c.rank), len(group)
    held = [tensor_of(rank, shape, dtype) for rank in group]
    x = held[place].clone()
    gathered = c.all_gather(x, group)
    assert same(gathered, torch.stack(held)), ("all_gather", dtype, shape)
    root = group[-1]
    copied = c.broadcast(x, group, root)
    assert same(copied, held[-1]), ("broadcast", dtype, shape)
    pieces = [tensor_of(rank, (p, *shape), dtype) for rank in group]
    sent = pieces[place].clone()
    received = c.all_to_all(sent, group)
    assert same(received, torch.stack([t[place] for t in pieces])), ("all_to_all", dtype)
    for given_, result in ((x, gathered), (x, copied), (sent, received)):
        assert not x.numel() or given_.data_ptr() != result.data_ptr()
    assert same(x, held[place])
    assert same(sent, pieces[place])


def check_reduction(
    c: Communicator,
    group: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    op: str,
) -> None:
    place = group.index(c.rank)
    pieces = [tensor_of(rank, (len(group), *shape), dtype) for rank in group]
    x = pieces[place].clone()
    whole = reduced(op, pieces)
    assert same(c.all_reduce(x, group, op), whole), ("all_reduce", op, dtype, shape)
    piece = c.reduce_scatter(x, group, op)
    assert same(piece, whole[place]), ("reduce_scatter", op, dtype, shape)
    assert piece.is_contiguous()
    assert same(x, pieces[place])
    x[0] = 1
    assert same(piece, whole[place])


def test_every_kind_moves_what_it_says_for_every_dtype(ranks):
    partitions = [((0, 1, 2, 3),), ((0, 2), (3, 1)), ((2, 0, 1), (3,)), ((3, 1, 0, 2),)]
    shapes = [(2, 3), (5,), (), (0, 2)]
    ranks(4).run(every_kind, partitions, shapes)


def cut_and_rejoin(context: RankContext, order: tuple[int, ...], numbers: list[int]) -> None:
    c, place = context.communicator, order.index(context.rank)
    c.declare_groups((order,))
    x = (torch.tensor(numbers) * (place + 1)).repeat(len(order), 1)
    summed = c.all_reduce(x, order)
    assert same(c.all_gather(c.reduce_scatter(x, order), order), summed)
    assert same(c.all_to_all(c.all_to_all(x, order), order), x)
    assert same(c.broadcast(x, order, order[0]), x // (place + 1))
    extremes = torch.tensor([numbers, [number * len(order) for number in numbers]])
    assert same(c.all_reduce(x, order, "max")[0], extremes.amax(0))
    assert same(c.all_reduce(x, order, "min")[0], extremes.amin(0))


@settings(max_examples=25)
@given(
    order=st.integers(1, 5).flatmap(lambda p: st.permutations(range(p))),
    numbers=st.lists(st.integers(-9, 9), max_size=4),
)
def test_collectives_undo_each_other(simulated_ranks, order, numbers):
    simulated_ranks(len(order)).run(cut_and_rejoin, tuple(order), numbers)


def sum_noise(context: RankContext, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(context.rank)
    x = torch.randn(4, 501, generator=generator).to(dtype)
    summed = context.communicator.all_reduce(x, context.everyone)
    gathered = context.communicator.all_gather(
        context.communicator.reduce_scatter(x, context.everyone), context.everyone
    )
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(gathered, summed, rtol=0, atol=tolerance)
    return summed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_get_the_same_bits_although_sums_round(ranks, dtype):
    ranks(4).run(sum_noise, dtype, agree=True)


# ---- inside autograd Functions


class SumOverRanks(torch.autograd.Function):
    """Forward: sum of partial results. Backward: every rank has the whole gradient already."""

    @staticmethod
    def forward(ctx, x, communicator, group):
        return communicator.all_reduce(x.contiguous(), group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class CopyToRanks(torch.autograd.Function):
    """Forward: nothing to do. Backward: each rank has a part of the sum."""

    @staticmethod
    def forward(ctx, x, communicator, group):
        ctx.where = communicator, group
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        communicator, group = ctx.where
        return communicator.all_reduce(gradient.contiguous(), group), None, None


def split_mlp(context: RankContext) -> dict[str, torch.Tensor]:
    """A two-layer network cut by columns, then by rows, against the whole one."""
    c, p, rank = context.communicator, context.world_size, context.rank
    generator = torch.Generator().manual_seed(0)
    x, up, down = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 4), (8, 4), (4, 8))
    )
    whole = torch.tanh(x @ up.T) @ down.T
    whole.square().sum().backward()
    mine = [
        t.detach().clone().requires_grad_() for t in (x, up.chunk(p)[rank], down.chunk(p, 1)[rank])
    ]
    inner = torch.tanh(CopyToRanks.apply(mine[0], c, context.everyone) @ mine[1].T)
    out = SumOverRanks.apply(inner @ mine[2].T, c, context.everyone)
    with c.recording() as log:
        out.square().sum().backward()
    torch.testing.assert_close(out, whole)
    for found, expected in (
        (mine[0].grad, x.grad),
        (mine[1].grad, up.grad.chunk(p)[rank]),
        (mine[2].grad, down.grad.chunk(p, 1)[rank]),
    ):
        torch.testing.assert_close(found, expected)
    assert [str(record) for record in log] == [
        f"all_reduce {','.join(map(str, context.everyone))} {3 * 4 * 8} float64"
    ]
    return {"out": out.detach(), "gradient": mine[0].grad}


@pytest.mark.parametrize("world_size", [2, 4])
def test_forward_and_backward_of_a_split_network(ranks, world_size):
    ranks(world_size).run(split_mlp, agree=True)


# ---- records


def record_all(context: RankContext) -> list[str]:
    c, all_ranks, alone = context.communicator, context.everyone, (context.rank,)
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    c.all_reduce(x, all_ranks)
    with c.recording() as log:
        assert c.log is log
        c.all_gather(x, all_ranks)
        c.reduce_scatter(x, all_ranks)
        c.all_reduce(x.float(), all_ranks, "max")
        c.all_to_all(x, all_ranks)
        c.broadcast(x.bool(), all_ranks, 1)
        c.barrier(all_ranks)
        c.all_gather(x[:0], all_ranks)
        for kind in ("all_gather", "all_reduce"):
            getattr(c, kind)(x, alone)
        with pytest.raises(InvalidValueError, match="inside"), c.recording():
            pass
        c.all_reduce(x, all_ranks)
    c.all_reduce(x, all_ranks)
    with c.recording() as later:
        pass
    assert later == []
    assert c.log is later
    return [str(record) for record in log]


def test_records_state_the_bytes_of_each_message(ranks):
    expected = [
        "all_gather 0,1 24 bfloat16",
        "reduce_scatter 0,1 12 bfloat16",
        "all_reduce 0,1 24 float32",
        "all_to_all 0,1 12 bfloat16",
        "broadcast 0,1 6 bool",
        "all_gather 0,1 0 bfloat16",
        "all_reduce 0,1 12 bfloat16",
    ]
    assert ranks(2).run(record_all) == [expected, expected]


# ---- what is refused, before anything is sent


def one_rank_group(context: RankContext) -> None:
    c, group = context.communicator, (context.rank,)
    x = torch.arange(6.0).reshape(1, 2, 3)
    for result, expected in (
        (c.all_gather(x, group), x[None]),
        (c.reduce_scatter(x, group), x[0]),
        (c.all_reduce(x, group), x),
        (c.all_to_all(x, group), x),
        (c.broadcast(x, group, context.rank), x),
    ):
        assert same(result, expected)
        result.add_(1.0)
        assert x[0, 0, 1] == 1.0
    c.barrier(group)


def test_a_group_of_one_rank_copies_and_needs_no_declaration(ranks):
    ranks(2).run(one_rank_group)


def refuse(context: RankContext) -> None:
    c, group = context.communicator, context.everyone
    x = torch.zeros(2, 3)
    refusals = [
        (lambda: c.all_reduce(x, (1, 0)), "not declared .declared: .0, 1.*declare_groups"),
        (lambda: c.barrier((1, 0)), "not declared"),
        (lambda: c.all_reduce(x, (1 - context.rank,)), "only its ranks"),
        (lambda: c.all_reduce(x.clone().requires_grad_(), group), "differentiable"),
        (lambda: c.all_gather(x.T, group), "contiguous"),
        (lambda: c.reduce_scatter(x[:1], group), "dim 0 holds one piece for each of 2"),
        (lambda: c.all_to_all(torch.tensor(0.0), group), "dim 0"),
        (lambda: c.reduce_scatter(torch.zeros(2, 2), (context.rank,)), "each of 1 ranks"),
        (lambda: c.broadcast(x, group, 2), "the root is no rank"),
        (lambda: c.all_reduce(x, group, "mean"), "'mean' is not one of sum, max, min"),
        (lambda: c.declare_groups(((0, 0),)), "distinct"),
        (lambda: c.declare_groups(((),)), "distinct"),
        (lambda: c.declare_groups(((0, 2),)), r"0\.\.1"),
    ]
    for call, what in refusals:
        with pytest.raises(InvalidValueError, match=what):
            call()
    for dtype, op in (
        *((dtype, "sum") for dtype in MOVED if dtype not in SUMMED),
        *((dtype, "min") for dtype in MOVED if dtype not in ORDERED),
    ):
        for call in (c.all_reduce, c.reduce_scatter):
            with pytest.raises(UnsupportedError, match="convert to a wider dtype"):
                call(x.to(dtype), group, op)
    with torch.no_grad():
        c.all_reduce(x.clone().requires_grad_(), group)
    with pytest.raises(InvalidValueError, match=r"0\.\.world_size-1"):
        Communicator.__init__(c, 2, 2)


def test_wrong_calls_are_refused_alike(ranks):
    ranks(2).run(refuse)


# ---- ranks that do not do the same


def differ(context: RankContext, how: str) -> None:
    c, group, odd = context.communicator, context.everyone, context.rank == 2
    x = torch.zeros(4, 3)
    if how == "shape":
        c.all_reduce(x[:3] if odd else x, group)
    elif how == "dtype":
        c.all_gather(x.double() if odd else x, group)
    elif how == "op":
        c.all_reduce(x, group, "max" if odd else "sum")
    elif how == "root":
        c.broadcast(x, group, 1 if odd else 0)
    elif how == "kind":
        c.all_to_all(x, group) if odd else c.reduce_scatter(x, group)
    elif how == "barrier":
        c.all_reduce(x, group) if odd else c.barrier(group)
    elif how == "groups":
        c.declare_groups(((0, 1),) if odd else ((1, 0),))
    elif how == "many groups":
        triples = tuple(permutations(range(4), 3))
        many = (*triples, *permutations(range(4)))
        c.declare_groups((*many, (0, 1) if odd else (1, 0)))  # longer than what is compared


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("shape", r"all_reduce\(sum\) of float32\[3, 3\] over ranks \[0, 1, 2, 3\]"),
        ("dtype", r"all_gather of float64\[4, 3\]"),
        ("op", r"all_reduce\(max\)"),
        ("root", r"broadcast\(root 1\)"),
        ("kind", "all_to_all of"),
        ("barrier", "all_reduce"),
        ("groups", r"declare_groups\(\(0, 1\),\)"),
        ("many groups", "declare_groups"),
    ],
)
def test_the_rank_that_calls_something_else_is_named(ranks, how, what):
    with pytest.raises(RanksFailedError) as caught:
        ranks(4).run(differ, how, timeout_s=LONG_S)
    caught.match(f"raised: [a-z_.]*CollectiveError: rank 2 called {what}.*; ranks 0, 1, 3 called")
