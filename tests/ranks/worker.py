"""One real rank: a process that joins the others over gloo and runs the cases it is sent.

It ends when its pipe is closed, and at once, whatever it is doing, when the process that
started it is gone.
"""

import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardwise.runtime.torch_communicator import ProcessGroups, TorchCommunicator
from tests.ranks.case import Answer, CaseReference, RankContext, raised


def main(rank: int, world_size: int, connection: Connection, folder: Path) -> None:
    """Serve cases until the pipe is closed; target of the process that RealPool starts."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (folder / f"printed-{rank}").open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    with (folder / f"stack-{rank}").open("w") as stack_file:
        faulthandler.register(signal.SIGUSR1, stack_file, all_threads=True)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder / "store"), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(days=1),
        )
        process_groups = ProcessGroups(torch.device("cpu"))
        connection.send_bytes(pickle.dumps(Answer()))
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                break
            connection.send_bytes(_answer(rank, process_groups, message))
        dist.destroy_process_group()


def _answer(rank: int, process_groups: ProcessGroups, message: bytes) -> bytes:
    try:
        return pickle.dumps(Answer(_run(process_groups, message)))
    except BaseException as error:
        return pickle.dumps(Answer(failure=raised(rank, error), at_s=time.monotonic()))


def _run(process_groups: ProcessGroups, message: bytes) -> Any:
    reference, packed = pickle.loads(message)
    assert isinstance(reference, CaseReference)
    case = reference.load()
    communicator = TorchCommunicator(process_groups, checked=True)
    communicator.declare_groups((process_groups.everyone,))
    context = RankContext(communicator.rank, communicator.world_size, communicator)
    return case(context, *pickle.loads(packed))


def _end_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
