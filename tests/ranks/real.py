"""Real ranks: processes joined over gloo on the loopback interface, spawned once, sent cases.

A failure of any rank ends the whole pool, for the state of its collectives is unknown; the next
case builds it again. That is cheap: ranks are forked off a server process that holds torch and
nothing else (multiprocessing's "forkserver"). Only processes that the pool started are ended.
"""

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from shardwise.runtime.rank_failure import RankFailure, RanksFailedError
from tests.ranks import worker
from tests.ranks.agree import assert_ranks_agree
from tests.ranks.case import Answer, CaseReference

_PRELOADED = ["torch", "torch.distributed", "numpy", "sympy", "pytest", "hypothesis"]
"""Slow imports that the server does once for all ranks."""
_START_S = 120.0
"""Longest wait for a rank that imports torch and joins the others."""
_POLL_S = 0.2
"""How often a rank is looked at that does not close its pipe although it is dead."""
_GRACE_S = 0.5
"""How long the other ranks get to say how they failed, once one of them has."""
_END_S = 10.0
"""Longest wait for a rank to end of itself at the close."""
_TAIL_CHARS = 4000
"""How much of what a failed rank printed is shown."""


class RealPool:
    """`world_size` processes that run one case at a time, all of them the same one."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._printed: dict[int, int] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of the present ranks; none before the first case and after a failure."""
        return tuple(process.pid or 0 for process in self._processes)

    def run(
        self,
        case: Callable[..., Any],
        *args: Any,
        timeout_s: float = 60.0,
        agree: bool = False,
    ) -> list[Any]:
        """Run case(context, *args) on every rank; return the results in rank order.

        The case is a top-level function of any file; arguments and results are pickled. Raises
        RanksFailedError at once when a rank raises or dies, and after timeout_s when one is not
        done; with `agree`, RanksDisagreeError when results are not the same bit for bit.
        """
        message = pickle.dumps((CaseReference.of(case), pickle.dumps(args)))
        try:
            if not self._processes:
                self._start()
            sizes = (self._log(rank).stat().st_size for rank in range(self.world_size))
            self._printed = dict(enumerate(sizes))
            for connection in self._connections:
                with suppress(ConnectionError):  # a rank that died is found at its answer
                    connection.send_bytes(message)
            results = [answer.value for answer in self._collect(timeout_s)]
        except BaseException:
            self._kill()
            raise
        if agree:
            assert_ranks_agree(results)
        return results

    def close(self) -> None:
        """Let the ranks end; kill those that do not."""
        for connection in self._connections:
            connection.close()
        until_s = time.monotonic() + _END_S
        for process in self._processes:
            process.join(max(until_s - time.monotonic(), 0.0))
        self._kill()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._printed = {}
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            self._connections.append(ours)
            with theirs:
                process = context.Process(
                    target=worker.main,
                    args=(rank, self.world_size, theirs, Path(self._folder.name)),
                    daemon=True,
                )
                process.start()
            self._processes.append(process)
        self._collect(_START_S)

    def _collect(self, timeout_s: float) -> list[Answer]:
        """Return one answer of each rank, or raise RanksFailedError."""
        answers: dict[int, Answer] = {}
        died: list[int] = []
        deadline_s = time.monotonic() + timeout_s
        while len(answers) + len(died) < self.world_size and time.monotonic() < deadline_s:
            pending = [r for r in range(self.world_size) if r not in answers and r not in died]
            wait_s = min(max(deadline_s - time.monotonic(), 0.0), _POLL_S)
            ready = wait([self._connections[rank] for rank in pending], wait_s)
            for rank in pending:
                connection, process = self._connections[rank], self._processes[rank]
                if connection not in ready and (process.exitcode is None or connection.poll()):
                    continue
                try:
                    answers[rank] = pickle.loads(connection.recv_bytes())
                    failed = answers[rank].failure is not None
                except (EOFError, ConnectionError):
                    died.append(rank)
                    failed = True
                if failed:
                    deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
        raised = [answer for answer in answers.values() if answer.failure is not None]
        raised.sort(key=lambda answer: answer.at_s)
        failures = [self._describe_death(rank) for rank in died]
        failures += [self._with_print(answer.failure) for answer in raised if answer.failure]
        if not failures:
            missing = [rank for rank in range(self.world_size) if rank not in answers]
            failures = [self._describe_hang(rank, timeout_s) for rank in missing]
        if failures:
            raise RanksFailedError(f"{self.world_size} real ranks", failures)
        return [answers[rank] for rank in range(self.world_size)]

    def _describe_death(self, rank: int) -> RankFailure:
        self._processes[rank].join(_END_S)
        code = self._processes[rank].exitcode
        summary = f"exit code {code}"
        if code is None:
            summary = "closed its pipe"
        elif code < 0:
            summary = f"killed by {signal.Signals(-code).name}"
        return self._with_print(RankFailure(rank, "died", summary))

    def _describe_hang(self, rank: int, timeout_s: float) -> RankFailure:
        assert self._folder is not None
        stack = Path(self._folder.name) / f"stack-{rank}"
        text = ""
        if stack.exists():
            os.kill(self.pids[rank], signal.SIGUSR1)
            until_s = time.monotonic() + _GRACE_S
            while not text.endswith("\n") and time.monotonic() < until_s:
                time.sleep(0.02)
                text = stack.read_text()
        failure = RankFailure(rank, "hung", f"not done after {timeout_s:g} s", text)
        return self._with_print(failure)

    def _with_print(self, failure: RankFailure) -> RankFailure:
        text = ""
        if self._log(failure.rank).exists():
            with self._log(failure.rank).open("rb") as log:
                log.seek(self._printed.get(failure.rank, 0))
                text = log.read().decode(errors="replace")[-_TAIL_CHARS:]
        detail = f"{failure.detail}\nprinted:\n{text}" if text else failure.detail
        return RankFailure(failure.rank, failure.kind, failure.summary, detail)

    def _log(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"printed-{rank}"

    def _kill(self) -> None:
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._connections, self._folder = [], [], None
