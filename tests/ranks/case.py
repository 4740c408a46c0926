"""What goes between a pool and its ranks: the case, its context, the answer."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.ir.errors import InvalidValueError
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.rank_failure import RankFailure


@dataclass(frozen=True, slots=True)
class RankContext:
    """First argument of every case."""

    rank: int
    world_size: int
    communicator: Communicator
    """New for each case; the group of all ranks is declared."""

    @property
    def everyone(self) -> tuple[int, ...]:
        """The group of all ranks."""
        return tuple(range(self.world_size))


@dataclass(frozen=True, slots=True)
class CaseReference:
    """A top-level function of a test file. pytest imports test files under names that no other
    process can import, so a rank loads the file, once, under the same name: then what the file
    defines pickles both ways."""

    module: str
    path: str
    name: str

    @classmethod
    def of(cls, case: Callable[..., Any]) -> "CaseReference":
        """Refer to a function; raises InvalidValueError when a rank could not find it again."""
        module = sys.modules.get(getattr(case, "__module__", ""))
        name = getattr(case, "__qualname__", "")
        if module is None or getattr(module, name, None) is not case or not module.__file__:
            raise InvalidValueError(
                f"case {case!r}: not a function at the top level of a file, where a rank can "
                "find it; move it there and pass what it needs as arguments"
            )
        return cls(module.__name__, str(Path(module.__file__).resolve()), name)

    def load(self) -> Callable[..., Any]:
        """Return the function in this process."""
        module = sys.modules.get(self.module)
        if module is None:
            spec = importlib.util.spec_from_file_location(self.module, self.path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.module] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[self.module]
                raise
        return getattr(module, self.name)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank sends back; also once when it is ready for the first case."""

    value: Any = None
    failure: RankFailure | None = None
    at_s: float = 0.0
    """time.monotonic() at the failure: one clock for all processes, so the first is known."""


def raised(rank: int, error: BaseException) -> RankFailure:
    """Describe the exception that ended a case."""
    summary = " ".join(traceback.format_exception_only(error)).strip()
    return RankFailure(rank, "raised", summary, "".join(traceback.format_exception(error)))
