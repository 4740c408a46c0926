"""What only simulated ranks promise: a fixed order of sums, and no vain wait."""

import random
import time

import pytest
import torch

from shardwise.runtime.communicator import CollectiveError
from shardwise.runtime.rank_failure import RanksFailedError
from shardwise.runtime.thread_communicator import run_ranks
from tests.ranks.case import RankContext

LONG_S = 600.0
"""A time-out that no test waits for: what needs it must be noticed before."""


def sum_what_cancels(context: RankContext) -> tuple[float, float]:
    x = torch.tensor([1.0, 2.0**24, -(2.0**24), 1.0][context.rank])
    c, back = context.communicator, (3, 2, 1, 0)
    c.declare_groups((back,))
    return c.all_reduce(x, context.everyone).item(), c.all_reduce(x, back).item()


def test_simulated_ranks_add_in_group_order(simulated_ranks):
    forth, back = 1.0, 1.0
    for value in (2.0**24, -(2.0**24), 1.0):
        forth = (torch.tensor(forth) + torch.tensor(value)).item()
    for value in (-(2.0**24), 2.0**24, 1.0):
        back = (torch.tensor(back) + torch.tensor(value)).item()
    assert forth != back
    for _ in range(20):
        assert simulated_ranks(4).run(sum_what_cancels) == [(forth, back)] * 4


def overwrite_at_once(context: RankContext) -> None:
    """A rank that is done must not overwrite its tensor while another still reads it."""
    c, noise = context.communicator, random.Random(context.rank)
    for i in range(100):
        x = torch.full((3,), float(10 * i + context.rank))
        gathered = c.all_gather(x, context.everyone)
        x.fill_(-1.0)
        if noise.random() < 0.2:
            time.sleep(0.001)
        assert gathered[:, 0].tolist() == [10.0 * i + rank for rank in range(3)]


def test_an_input_may_be_overwritten_at_once(simulated_ranks):
    simulated_ranks(3).run(overwrite_at_once)


def call_in_another_order(context: RankContext) -> None:
    c = context.communicator
    c.declare_groups(((0, 1), (1, 2), (2, 0)))
    mine = [((0, 1), (2, 0)), ((1, 2), (0, 1)), ((2, 0), (1, 2))][context.rank]
    for group in mine:
        c.barrier(group)


def leave_before_the_others_wait(context: RankContext) -> None:
    if context.rank != 1:
        time.sleep(0.2)
        context.communicator.barrier(context.everyone)


def leave_while_another_waits(context: RankContext) -> None:
    """Rank 2 goes on, so that not all ranks are stuck."""
    if context.rank == 0:
        context.communicator.barrier(context.everyone)
    time.sleep(0.2 * context.rank)


def raise_alone(context: RankContext) -> None:
    """The others do not wait for rank 2: they are told in their next collective."""
    c, pair = context.communicator, (0, 1)
    c.declare_groups((pair,))
    if context.rank == 2:
        raise KeyError("planted")
    for _ in range(1000):
        time.sleep(0.01)
        c.barrier(pair)


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (
            call_in_another_order,
            r"every rank waits for another: rank 0 waits in barrier over ranks \[0, 1\]; "
            r"rank 1 waits in barrier over ranks \[1, 2\]; "
            r"rank 2 waits in barrier over ranks \[2, 0\]",
        ),
        (leave_before_the_others_wait, "rank 1 ended while rank [02] waits in barrier"),
        (leave_while_another_waits, "rank 1 ended while rank 0 waits in barrier"),
        (
            raise_alone,
            "^3 simulated ranks: rank 2 raised: KeyError: 'planted'; rank [01] raised: "
            "[a-z_.]*CollectiveError: rank 2 raised: KeyError: 'planted'; rank [01] raised",
        ),
    ],
)
def test_simulated_ranks_that_wait_in_vain_are_told_at_once(simulated_ranks, case, what):
    with pytest.raises(RanksFailedError, match=what) as caught:
        simulated_ranks(3).run(case, timeout_s=LONG_S)
    assert isinstance(caught.value.__cause__, CollectiveError | KeyError)


def test_run_ranks_returns_what_each_rank_returns():
    assert run_ranks(3, lambda communicator: communicator.rank**2) == [0, 1, 4]
