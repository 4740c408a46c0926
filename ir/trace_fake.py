"""Faster fake tensors for tracing: what 32 equal layers compute alike is computed once.

`torch.export` spends most of its time on the sizes of fake tensors: for every operator it makes the
output's symbolic sizes, strides and contiguity anew. Layers repeat the same operators on the same
sizes, so both are remembered while `remembering` is active, for the shape environment of its own
mode only. Results are equal (tests/ir/test_trace.py compares them); a torch without the hooks used
here is traced at its usual speed.
"""

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import sympy.tensor.tensor  # noqa: F401  (these four are loaded by the first trace otherwise)
import torch
import torch._export.passes
import torch._functorch.partitioners
import torch.export._unlift
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import sym_node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_MAKE_OUTPUT = "_get_output_tensor_from_cache_entry"
_OPERATIONS = (
    "_add", "_sub", "_mul", "_int_floordiv", "_mod", "_eq", "_ne", "_lt", "_le", "_gt", "_ge",
    "_sym_max", "_sym_min",
)  # fmt: skip


class RememberingFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode that copies the output of an operator it has seen on the same sizes.

    An output that is a view does not share the storage of its input then; nothing in a trace reads
    storages.
    """

    def __init__(self) -> None:
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            super().__init__(
                shape_env=ShapeEnv(tracked_fakes=[], trace_asserts=True),
                allow_non_fake_inputs=True,
                export=True,
            )
        self.remembered: dict[int, tuple[Any, torch.Tensor]] = {}

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, func: Any, args: Any
    ) -> Any:
        found = self.remembered.get(id(entry))
        if found is not None:
            return FakeTensor(self, found[1], entry.metadata.device)
        output = getattr(super(), _MAKE_OUTPUT)(state, entry, key, func, args)
        metadata = entry.metadata
        if (
            metadata is not None
            and entry.inplace_idx is None
            and isinstance(output, FakeTensor)
            and not (metadata.requires_grad or metadata.is_conj or metadata.is_neg)
        ):
            with fake_tensor.in_kernel_invocation_manager(self):
                kept = output.detach()
                kept.is_contiguous()  # computed once, then copied with the tensor
                self.remembered[id(entry)] = (entry, kept)
        return output


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Traces inside (`torch.export.export`) use a mode of their own that remembers."""
    mode = RememberingFakeTensorMode()
    with (
        _remembered_sizes(mode.shape_env),
        _short_stacks(),
        _use_lazy_graph_module(True),
        tracing(TracingContext(mode)),
    ):
        yield


@contextlib.contextmanager
def _remembered_sizes(shape_env: ShapeEnv | None) -> Iterator[None]:
    """Results of binary operations on sizes of this environment, by their two expressions."""
    remembered: dict[Any, Any] = {}
    originals = {
        name: getattr(sym_node.SymNode, name)
        for name in _OPERATIONS
        if hasattr(sym_node.SymNode, name)
    }

    def faster(name: str, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def operation(left: Any, right: Any) -> Any:
            if left.shape_env is not shape_env or get_proxy_mode() is not None:
                return original(left, right)
            key = (name, left._expr, right._expr, left.pytype, right.pytype)
            result = remembered.get(key)
            if result is None:
                result = remembered[key] = original(left, right)
            return result

        return operation

    for name, original in originals.items():
        setattr(sym_node.SymNode, name, faster(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(sym_node.SymNode, name, original)


class _Stack:
    """The frames of a call, without their source text: what a node of a trace remembers."""

    def __init__(self, frame: FrameType | None) -> None:
        self.frame = frame

    @staticmethod
    def extract(**options: object) -> "_Stack":
        """The stack of the caller."""
        return _Stack(sys._getframe(1))

    def summary(self) -> traceback.StackSummary:
        """Frames, outermost first."""
        frames = []
        frame = self.frame
        while frame is not None:
            code = frame.f_code
            frames.append(
                traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, line="")
            )
            frame = frame.f_back
        return traceback.StackSummary(reversed(frames))


@contextlib.contextmanager
def _short_stacks() -> Iterator[None]:
    """Nodes record their stack without reading source files; a twelfth of the time of a trace."""
    original = getattr(proxy, "CapturedTraceback", None)
    if original is None:
        yield
        return
    setattr(proxy, "CapturedTraceback", _Stack)  # noqa: B010
    try:
        yield
    finally:
        setattr(proxy, "CapturedTraceback", original)  # noqa: B010
