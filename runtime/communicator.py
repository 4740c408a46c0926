"""What an emitted program communicates through: six collectives on named groups of ranks.

One interface, two machines behind it: `TorchCommunicator` (torch.distributed, one process per
rank) and `ThreadCommunicator` (all ranks in one process). This class checks every call, so a
program that is wrong on one of them is refused by the other as well; a machine only moves data.

No collective here is differentiable: a program calls them inside the forward and backward of
its own autograd Functions, where gradients are off.

Notation: p = number of ranks in the group; a rank's place is its index in the group.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch

from shardwise.ir.errors import InvalidValueError, ShardwiseError, UnsupportedError
from shardwise.runtime.collective_call import (
    REDUCTIONS,
    CollectiveCall,
    CollectiveRecord,
    Group,
)

_ORDERED = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
_ADDABLE = (*_ORDERED, torch.complex64)


class CollectiveError(ShardwiseError):
    """The ranks of a group do not make the same call, or one of them never comes."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that `shardwise.ir.dtype` uses: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


class Communicator(ABC):
    """Collectives of one rank.

    Every tensor given is contiguous and off the autograd graph; every result is new memory.
    A group holds this rank and was declared, or it is this rank alone: then the call copies,
    sends nothing and is not recorded. Pieces are equal: padding is the caller's matter.
    Raises InvalidValueError for a call that breaks a rule, UnsupportedError for a dtype that
    cannot be reduced, CollectiveError when the other ranks do something else.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise InvalidValueError(
                f"rank {rank} of {world_size}: a rank is in 0..world_size-1; check the launcher"
            )
        self._rank = rank
        self._world_size = world_size
        self._declared: dict[Group, None] = {}
        self._log: list[CollectiveRecord] = []
        self._is_recording = False

    @property
    def rank(self) -> int:
        """Global rank of this communicator."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self._world_size

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups declared so far, in the order in which they were made."""
        return tuple(self._declared)

    @property
    def log(self) -> list[CollectiveRecord]:
        """Records of the running, or else of the last, `recording()`."""
        return self._log

    @final
    @contextmanager
    def recording(self) -> Iterator[list[CollectiveRecord]]:
        """Record every message into a fresh log, which is yielded and stays readable after."""
        if self._is_recording:
            raise InvalidValueError(
                "recording() inside recording(): one log at a time; read .log of the outer one"
            )
        self._log = []
        self._is_recording = True
        try:
            yield self._log
        finally:
            self._is_recording = False

    @final
    def declare_groups(self, groups: tuple[Group, ...]) -> None:
        """Make groups usable. Every rank declares the same groups in the same order, also those
        that it is not in: making a group is itself a collective of all ranks."""
        for group in groups:
            if not group or len(set(group)) != len(group):
                raise InvalidValueError(
                    f"group {group}: a group is one or more distinct ranks; remove the repeats"
                )
            if not all(0 <= rank < self._world_size for rank in group):
                raise InvalidValueError(
                    f"group {group} in a world of {self._world_size}: ranks are in "
                    f"0..{self._world_size - 1}; check the mesh of the plan"
                )
        self._make_groups(tuple(dict.fromkeys(g for g in groups if len(g) > 1)))
        self._declared.update(dict.fromkeys(groups))

    @final
    def all_gather(self, x: torch.Tensor, group: Group) -> torch.Tensor:
        """Return [p, *x.shape]: the x of every rank, in group order."""
        call = self._call("all_gather", x, group)
        if len(group) == 1:
            return x.unsqueeze(0).clone()
        return self._record_and_execute(call, x, len(group) * _nbytes(x))

    @final
    def reduce_scatter(self, x: torch.Tensor, group: Group, op: str = "sum") -> torch.Tensor:
        """Reduce x[p, ...] over the group; return the slice x[place] of the result."""
        call = self._call("reduce_scatter", x, group, op=op)
        if len(group) == 1:
            return x[0].clone()
        return self._record_and_execute(call, x, _nbytes(x))

    @final
    def all_reduce(self, x: torch.Tensor, group: Group, op: str = "sum") -> torch.Tensor:
        """Reduce x elementwise over the group; every rank gets the same bits."""
        call = self._call("all_reduce", x, group, op=op)
        if len(group) == 1:
            return x.clone()
        return self._record_and_execute(call, x, _nbytes(x))

    @final
    def all_to_all(self, x: torch.Tensor, group: Group) -> torch.Tensor:
        """Send x[j] of x[p, ...] to place j; return [p, ...], slice i received from place i."""
        call = self._call("all_to_all", x, group)
        if len(group) == 1:
            return x.clone()
        return self._record_and_execute(call, x, _nbytes(x))

    @final
    def broadcast(self, x: torch.Tensor, group: Group, root: int) -> torch.Tensor:
        """Return the x of global rank `root`; elsewhere x gives only shape and dtype."""
        call = self._call("broadcast", x, group, root=root)
        if len(group) == 1:
            return x.clone()
        return self._record_and_execute(call, x, _nbytes(x))

    @final
    def barrier(self, group: Group) -> None:
        """Return when every rank of the group has called; carries no message, not recorded."""
        self._check_group("barrier", group)
        if len(group) > 1:
            self._execute(CollectiveCall("barrier", group), torch.empty(0))

    @abstractmethod
    def _make_groups(self, groups: tuple[Group, ...]) -> None:
        """Make distinct groups of two ranks or more, unless made before."""

    @abstractmethod
    def _execute(self, call: CollectiveCall, x: torch.Tensor) -> torch.Tensor:
        """Do a checked call of two ranks or more; the result is new. A barrier's is unused."""

    def _record_and_execute(
        self, call: CollectiveCall, x: torch.Tensor, message_bytes: int
    ) -> torch.Tensor:
        with torch.no_grad():
            result = self._execute(call, x)
        if self._is_recording:
            self._log.append(CollectiveRecord(call.kind, call.group, message_bytes, call.dtype))
        return result

    def _call(
        self, kind: str, x: torch.Tensor, group: Group, op: str = "", root: int | None = None
    ) -> CollectiveCall:
        self._check_group(kind, group)
        call = CollectiveCall(kind, group, tuple(x.shape), dtype_name(x.dtype), op, root)
        if x.requires_grad and torch.is_grad_enabled():
            raise InvalidValueError(
                f"{call}: the tensor requires a gradient, and no collective is differentiable; "
                "call it inside an autograd Function or under torch.no_grad()"
            )
        if not x.is_contiguous():
            raise InvalidValueError(
                f"{call}: the tensor has strides {x.stride()}; call .contiguous() before"
            )
        if kind in ("reduce_scatter", "all_to_all") and x.shape[:1] != (len(group),):
            raise InvalidValueError(
                f"{call}: dim 0 holds one piece for each of {len(group)} ranks; "
                "pad and view the tensor as [ranks, ...]"
            )
        if root is not None and root not in group:
            raise InvalidValueError(f"{call}: the root is no rank of the group; name a member")
        if kind in ("reduce_scatter", "all_reduce"):
            _check_reduction(call, x.dtype)
        return call

    def _check_group(self, kind: str, group: Group) -> None:
        if self._rank not in group:
            raise InvalidValueError(
                f"{kind} over ranks {list(group)} called by rank {self._rank}: only its ranks "
                "may call; use the group that holds this rank"
            )
        if len(group) > 1 and group not in self._declared:
            known = " ".join(str(list(g)) for g in self._declared) or "none"
            raise InvalidValueError(
                f"{kind} over ranks {list(group)}: the group was not declared (declared: "
                f"{known}); pass it to declare_groups() on all ranks first"
            )


def _check_reduction(call: CollectiveCall, dtype: torch.dtype) -> None:
    if call.op not in REDUCTIONS:
        raise InvalidValueError(f"{call}: op {call.op!r} is not one of {', '.join(REDUCTIONS)}")
    if dtype not in (_ADDABLE if call.op == "sum" else _ORDERED):
        raise UnsupportedError(
            f"{call}: {call.dtype} is not reduced by {call.op}; convert to a wider dtype "
            "(int32, bfloat16 or float32), reduce, and convert back"
        )


def _nbytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()
