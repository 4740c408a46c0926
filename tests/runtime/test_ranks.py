"""How a rank connects, and which of several failures is told."""

import pytest
import torch
import torch.distributed as dist

from shardwise.ir.errors import InvalidValueError
from shardwise.runtime.ranks import RankError, connected, first_failure


def test_one_rank_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with connected(torch.device("cpu")) as communicator:
        assert (communicator.rank, communicator.world_size) == (0, 1)
    with pytest.raises(InvalidValueError, match="as it is"), connected(torch.device("cpu")):
        raise InvalidValueError("as it is")


def test_the_first_failure_is_told_and_the_others_are_not():
    store = dist.HashStore()
    told = first_failure(store, 3, InvalidValueError("a\nb"))
    assert isinstance(told, RankError) and str(told) == "rank 3: a b"
    assert first_failure(store, 0, InvalidValueError("a")) is None
    assert first_failure(store, 1, RuntimeError("bug")) is None


def test_bugs_keep_their_traceback():
    error = ZeroDivisionError("division by zero")
    assert first_failure(dist.HashStore(), 0, error) is error


def test_a_rank_that_vanished():
    error = RuntimeError("[gloo/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1\n and more")
    told = first_failure(dist.HashStore(), 1, error)
    assert isinstance(told, RankError)
    assert str(told).startswith("rank 1: another rank ended without a word") and "\n" not in str(
        told
    )
