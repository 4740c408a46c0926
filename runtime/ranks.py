"""This process as one rank of a job: how it connects, and how its failure is told, once.

torchrun ends all ranks when one fails. The first rank that fails says so in one line that names it;
the others, which fail for want of it or of the same cause, leave without a word.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from shardwise.ir.errors import ShardwiseError
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld
from shardwise.runtime.torch_communicator import BACKENDS, ProcessGroups, TorchCommunicator

TIMEOUT_S = 600
"""A rank that waits this long for another one gives up."""

_FAILED = "shardwise/failed"
_LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "nccl error")


class RankError(ShardwiseError):
    """A rank of several failed; the message names it."""


@contextmanager
def connected(device: torch.device) -> Iterator[Communicator]:
    """This process's communicator: of torchrun's ranks, or of one rank alone.

    Raises RankError for what a user can mend on the first rank that fails, and SystemExit on the
    ranks that fail after it. An error that is a bug of ours passes as it is.
    """
    if "RANK" not in os.environ:
        yield ThreadCommunicator(0, ThreadWorld(1))
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    timeout = timedelta(seconds=TIMEOUT_S)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    try:
        dist.init_process_group(
            BACKENDS[device.type], store=store, rank=rank, world_size=world_size, timeout=timeout
        )
        yield TorchCommunicator(ProcessGroups(device))
    except Exception as error:
        failure = first_failure(store, rank, error)
        if failure is None:
            sys.exit(2)
        raise failure from error
    dist.destroy_process_group()


def this_process(device: torch.device) -> Communicator:
    """The communicator of a loop that is written by hand, which connects nothing itself.

    Of the process group that the caller has made, else of torchrun's ranks, which are connected
    here and left when the process ends, else of one rank alone. Raises MismatchError where the
    caller's group cannot serve this device.
    """
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            return ThreadCommunicator(0, ThreadWorld(1))
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(BACKENDS[device.type], timeout=timedelta(seconds=TIMEOUT_S))
        atexit.register(_leave)
    return TorchCommunicator(_process_groups(device, dist.group.WORLD))


@lru_cache(maxsize=1)
def _process_groups(device: torch.device, world: dist.ProcessGroup | None) -> ProcessGroups:
    """The groups of this process, shared by all programs as long as `world` lives."""
    return ProcessGroups(device)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def first_failure(store: Store, rank: int, error: Exception) -> Exception | None:
    """What rank `rank` raises for `error`; None when another rank has failed before it."""
    if store.add(_FAILED, 1) > 1:
        return None
    if isinstance(error, ShardwiseError | OSError):
        return RankError(f"rank {rank}: {' '.join(str(error).split())}")
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and any(word in text.lower() for word in _LOST):
        return RankError(
            f"rank {rank}: another rank ended without a word, or is stuck ({text[:200]}); look at "
            "what ended it: out of memory is the usual cause"
        )
    return error
