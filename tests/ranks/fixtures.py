"""The fixtures that give ranks to tests. Each is a factory: `real_ranks(2).run(case, ...)`.

All are of session scope, so tests with hypothesis may use them; torch is loaded on first use.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ranks.real import RealPool
    from tests.ranks.simulated import SimulatedPool


@pytest.fixture(scope="session")
def real_ranks() -> "Iterator[Callable[[int], RealPool]]":
    """Processes over gloo, one pool of each size in a session."""
    from tests.ranks.real import RealPool

    pools: dict[int, RealPool] = {}

    def pool(world_size: int) -> RealPool:
        return pools.setdefault(world_size, RealPool(world_size))

    yield pool
    for each in pools.values():
        each.close()


@pytest.fixture(scope="session")
def simulated_ranks() -> "Callable[[int], SimulatedPool]":
    """Threads of this process."""
    from tests.ranks.simulated import SimulatedPool

    return SimulatedPool


@pytest.fixture(scope="session", params=["simulated", "real"])
def ranks(request: pytest.FixtureRequest) -> "Callable[[int], RealPool | SimulatedPool]":
    """First the one, then the other."""
    return request.getfixturevalue(f"{request.param}_ranks")
