"""Real ranks: torch.distributed, over gloo on CPU and NCCL on CUDA.

What torch 2.13 asks for, checked on gloo: `all_gather_single` and `reduce_scatter_single` (the
older names warn) take flat tensors, not a stack of pieces; gloo moves no int16 and no float8,
so those travel as bytes; `new_group(sort_ranks=False)` keeps our order of ranks.
"""

import hashlib

import torch
import torch.distributed as dist

from shardwise.ir.errors import InvalidValueError, MismatchError
from shardwise.runtime.collective_call import CollectiveCall, Group, describe_difference
from shardwise.runtime.communicator import CollectiveError, Communicator

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Backend to give init_process_group, by device type."""

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

_SENT_AS_THEY_ARE = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
)

_CALL_BYTES = 512
"""Length of a call's text when ranks compare calls; longer text is compared by its digest."""


class ProcessGroups:
    """The process groups of this process: each made once, and shared by its communicators.

    Made after torch.distributed.init_process_group, with the backend that BACKENDS names for
    the device (raises MismatchError otherwise). All ranks make groups in one total order.
    """

    def __init__(self, device: torch.device) -> None:
        backend = BACKENDS.get(device.type)
        if backend is None:
            raise InvalidValueError(
                f"device {device}: no backend is known for it; use one of {', '.join(BACKENDS)}"
            )
        if not dist.is_initialized():
            raise MismatchError(
                "torch.distributed is not initialized; call init_process_group"
                f"({backend!r}) first, as the launcher does"
            )
        if dist.get_backend() != backend:
            raise MismatchError(
                f"device {device} with backend {dist.get_backend()}: "
                f"initialize torch.distributed with {backend!r}"
            )
        self.device = device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._handles: dict[Group, dist.ProcessGroup] = {}
        if dist.group.WORLD is not None:
            self._handles[tuple(range(self.world_size))] = dist.group.WORLD
        self._known = set(self._handles)

    def make(self, groups: tuple[Group, ...]) -> None:
        """Make the groups that are not made yet, and send a first message through each.

        A collective of all ranks. Raises CollectiveError when they name different groups.
        """
        self.compare(self.everyone, f"declare_groups{groups}")
        for group in groups:
            if group in self._known:
                continue
            self._known.add(group)
            handle = dist.new_group(list(group), sort_ranks=False)
            if self.rank in group:
                self._handles[group] = handle
                dist.all_reduce(torch.zeros(1, device=self.device), group=handle)

    @property
    def everyone(self) -> Group:
        """All ranks, in order: the group that needs no making."""
        return tuple(range(self.world_size))

    def handle(self, group: Group) -> dist.ProcessGroup:
        """Return the process group of a group that was made and holds this rank."""
        return self._handles[group]

    def compare(self, group: Group, call: str) -> None:
        """Raise CollectiveError naming who differs, unless all ranks of the group say the same.

        One all_gather of 512 bytes; a rank that never comes is left to the caller's time-out.
        """
        text = call.encode("ascii", "replace")
        if len(text) > _CALL_BYTES:
            digest = hashlib.sha256(text).hexdigest().encode()
            text = text[: _CALL_BYTES - len(digest) - 1] + b"#" + digest
        mine = torch.zeros(_CALL_BYTES, dtype=torch.uint8)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        mine = mine.to(self.device)
        all_calls = mine.new_empty(len(group) * _CALL_BYTES)
        dist.all_gather_single(all_calls, mine, group=self.handle(group))
        rows = all_calls.view(len(group), _CALL_BYTES).tolist()
        difference = describe_difference(
            {rank: bytes(row).rstrip(b"\0").decode() for rank, row in zip(group, rows, strict=True)}
        )
        if difference is not None:
            raise CollectiveError(difference)


class TorchCommunicator(Communicator):
    """Collectives of this process, over process groups that other communicators may share.

    With `checked`, the ranks of a group first compare what they call (one more all_gather a
    call): gloo and NCCL accept different shapes and dtypes in silence.
    """

    def __init__(self, process_groups: ProcessGroups, *, checked: bool = False) -> None:
        super().__init__(process_groups.rank, process_groups.world_size)
        self._process_groups = process_groups
        self._checked = checked

    def _make_groups(self, groups: tuple[Group, ...]) -> None:
        if self.world_size > 1:
            self._process_groups.make(groups)

    def _execute(self, call: CollectiveCall, x: torch.Tensor) -> torch.Tensor:
        device = self._process_groups.device
        if call.kind != "barrier" and x.device.type != device.type:
            raise InvalidValueError(
                f"{call}: the tensor is on {x.device}, the process groups are on {device}; "
                "move it there"
            )
        if self._checked:
            self._process_groups.compare(call.group, str(call))
        handle = self._process_groups.handle(call.group)
        if call.kind == "barrier":
            dist.barrier(handle, device_ids=None if device.index is None else [device.index])
            return x
        result = _new_result(call, x)
        if x.numel() == 0:
            return result
        if call.kind == "all_gather":
            dist.all_gather_single(_flat(result), _flat(x), group=handle)
        elif call.kind == "all_to_all":
            dist.all_to_all_single(_flat(result), _flat(x), group=handle)
        elif call.kind == "all_reduce":
            dist.all_reduce(result, _OPS[call.op], group=handle)
        elif call.kind == "reduce_scatter":
            dist.reduce_scatter_single(result.view(-1), x.view(-1), op=_OPS[call.op], group=handle)
        elif call.root is not None:
            dist.broadcast(_flat(result), call.root, group=handle)
        return result


def _new_result(call: CollectiveCall, x: torch.Tensor) -> torch.Tensor:
    if call.kind == "all_gather":
        return x.new_empty((len(call.group), *x.shape))
    if call.kind == "reduce_scatter":
        return x.new_empty(x.shape[1:])
    if call.kind in ("all_reduce", "broadcast"):
        return x.clone()
    return torch.empty_like(x)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """View as one dim of elements that every backend moves; shares memory with x."""
    flat = x.view(-1)
    return flat if x.dtype in _SENT_AS_THEY_ARE else flat.view(torch.uint8)
