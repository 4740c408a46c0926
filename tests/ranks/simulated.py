"""Simulated ranks behind the interface of the real ones."""

import pickle
from collections.abc import Callable
from typing import Any

from shardwise.runtime.thread_communicator import ThreadCommunicator, run_ranks
from tests.ranks.agree import assert_ranks_agree
from tests.ranks.case import CaseReference, RankContext


class SimulatedPool:
    """Runs cases on threads, with the interface of RealPool; there is nothing to end."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def run(
        self,
        case: Callable[..., Any],
        *args: Any,
        timeout_s: float = 60.0,
        agree: bool = False,
    ) -> list[Any]:
        """Run case(context, *args) on every rank, each with its own copy of the arguments.

        Draw random numbers from a torch.Generator of the case: the global one is shared.
        """
        CaseReference.of(case)
        packed = pickle.dumps(args)
        everyone = tuple(range(self.world_size))

        def run(communicator: ThreadCommunicator) -> Any:
            communicator.declare_groups((everyone,))
            context = RankContext(communicator.rank, self.world_size, communicator)
            return case(context, *pickle.loads(packed))

        results = run_ranks(self.world_size, run, timeout_s=timeout_s)
        if agree:
            assert_ranks_agree(results)
        return results
