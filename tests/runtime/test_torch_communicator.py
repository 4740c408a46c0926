"""Process groups: made once, over the backend of the device, by names that are not deprecated."""

import warnings

import pytest
import torch

from shardwise.ir.errors import InvalidValueError, MismatchError
from shardwise.runtime.torch_communicator import ProcessGroups, TorchCommunicator
from tests.ranks.case import RankContext


def use_the_pool(context: RankContext) -> None:
    group = (1, 0)
    process_groups = ProcessGroups(torch.device("cpu"))
    handles = []
    for _ in range(2):
        communicator = TorchCommunicator(process_groups)
        with pytest.raises(InvalidValueError, match="not declared"):
            communicator.barrier(group)
        communicator.declare_groups((group, (0,), context.everyone, group))
        assert communicator.groups == (group, (0,), context.everyone)
        handles.append(process_groups.handle(group))
        x = torch.tensor(float(context.rank))
        assert communicator.all_gather(x, group).tolist() == [1.0, 0.0]
    assert handles[0] is handles[1]
    with pytest.raises(MismatchError, match=r"initialize torch\.distributed with 'nccl'"):
        ProcessGroups(torch.device("cuda"))
    with pytest.raises(InvalidValueError, match="no backend is known"):
        ProcessGroups(torch.device("meta"))
    with pytest.raises(InvalidValueError, match="move it there"):
        communicator.all_reduce(torch.empty(2, device="meta"), group)
    assert communicator.all_reduce(x, group).item() == 1.0


def test_process_groups_are_made_once_and_shared(real_ranks):
    real_ranks(2).run(use_the_pool)


def test_process_groups_need_torch_distributed():
    with pytest.raises(MismatchError, match="call init_process_group"):
        ProcessGroups(torch.device("cpu"))


def call_all_under_warnings(context: RankContext) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c, group, x = TorchCommunicator(ProcessGroups(torch.device("cpu"))), (1, 0), torch.ones(2)
        c.declare_groups((context.everyone, group))
        assert c.all_gather(x, group).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert c.reduce_scatter(x, group).item() == 2.0
        assert c.all_reduce(x, group).tolist() == [2.0, 2.0]
        assert c.all_to_all(x, group).tolist() == [1.0, 1.0]
        assert c.broadcast(x, group, 0).tolist() == [1.0, 1.0]
        c.barrier(group)


def test_no_name_that_we_call_is_deprecated(real_ranks):
    real_ranks(2).run(call_all_under_warnings)
