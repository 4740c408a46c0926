"""Faster fake tensors for tracing: what 32 equal layers compute alike is computed once.

`torch.export` spends most of its time on the sizes of fake tensors: for every operator it makes the
output's symbolic sizes, strides and contiguity anew. Layers repeat the same operators on the same
sizes, so both are remembered while `remembering` is active, for the shape environment of its own
mode only. Results are equal (tests/ir/test_trace.py compares them); a torch without the hooks used
here is traced at its usual speed.
"""

import contextlib
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

import sympy
import sympy.tensor.tensor  # these four are loaded by the first trace otherwise
import torch
import torch._export.passes
import torch._functorch.partitioners
import torch.export._unlift
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import sym_node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions

_TORCH = str(Path(torch.__file__).parent)
_ENTRY = str(Path(__file__).with_name("trace_export.py"))
"""The file whose function calls the model: the stack of a node ends there."""
_MAKE_OUTPUT = "_get_output_tensor_from_cache_entry"
_OPERATIONS = (
    "_add", "_sub", "_mul", "_int_floordiv", "_mod", "_eq", "_ne", "_lt", "_le", "_gt", "_ge",
    "_sym_max", "_sym_min",
)  # fmt: skip


_PYTHON = {"FloorDiv": operator.floordiv, "Max": max, "Min": min, "Mod": operator.mod}
_ENUMERATED = 1 << 17
"""So many sizes are tried out to see that a question has one answer."""
_STRIDE_CHECKS = frozenset({"check_contiguous_sizes_strides", "is_contiguous"})
_STRIDE_KINDS = frozenset({
    "aten::reshape", "aten::contiguous", "aten::clone", "aten::flatten", "aten::view",
    "aten::_unsafe_view", "aten::_reshape_alias",
})  # fmt: skip


class TracingShapeEnv(ShapeEnv):
    """A ShapeEnv that makes no condition on sizes out of questions about strides.

    Whether x[:, :-1] is contiguous depends on S being 2, and table[:S] on S being the table's size:
    torch would trace for all other sizes only. A frozen graph holds no strides (every view is a
    reshape), so it holds for these sizes too. What shapes themselves depend on stays a condition:
    equalities that hold, divisibility, and every question that the model's own code asks.
    """

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        """See ShapeEnv."""
        if self._has_one_answer(orig_expr) or (
            self._is_of_strides(orig_expr) and _asked_for_strides(sys._getframe(1))
        ):
            with self.suppress_guards():
                return super().evaluate_expr(orig_expr, *args, **kwargs)
        return super().evaluate_expr(orig_expr, *args, **kwargs)

    def _is_of_strides(self, expression: Any) -> bool:
        """Whether an answer says no more than that sizes differ, or which is larger."""
        if not isinstance(expression, sympy.Rel) or expression.has(functions.Mod):
            return False
        if not isinstance(expression, sympy.Eq | sympy.Ne):
            return True
        answer = expression.xreplace(self.backed_var_to_val)
        return bool(answer == isinstance(expression, sympy.Ne))

    def _has_one_answer(self, expression: sympy.Basic) -> bool:
        """Whether a question with a rounded quotient of one size has one answer for all its sizes.

        torch does not see that S // 2 <= S.
        """
        if not expression.has(functions.FloorDiv) or len(expression.free_symbols) != 1:
            return False
        (size,) = expression.free_symbols
        ends = self.var_to_range[size]
        if not (ends.lower.is_Integer and ends.upper.is_Integer):
            return False
        sizes = range(int(ends.lower), int(ends.upper) + 1)
        if len(sizes) > _ENUMERATED:
            return False
        answer = sympy.lambdify(size, expression, [_PYTHON, "math"])
        return len({bool(answer(number)) for number in sizes}) == 1


def _asked_for_strides(frame: FrameType | None) -> bool:
    """Whether the innermost operator or check on the stack is one about strides."""
    while frame is not None:
        name = frame.f_code.co_name
        if name in _STRIDE_CHECKS and frame.f_globals.get("__name__") == "torch._prims_common":
            return True
        if name == "__call__" and isinstance(owner := frame.f_locals.get("self"), OpOverload):
            return owner._schema.name in _STRIDE_KINDS
        frame = frame.f_back
    return False


class RememberingFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode that copies the output of an operator it has seen on the same sizes.

    An output that is a view does not share the storage of its input then; nothing in a trace reads
    storages.
    """

    def __init__(self) -> None:
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            super().__init__(
                shape_env=TracingShapeEnv(tracked_fakes=[], trace_asserts=True),
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
            assert self.shape_env is not None
            with fake_tensor.in_kernel_invocation_manager(self), self.shape_env.suppress_guards():
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
        contextlib.redirect_stderr(cast(TextIO, _Quiet(sys.stderr))),
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
        """The frames of the model's own code and of other libraries', outermost first.

        All are called `forward`, because torch keeps no others: helper functions count too.
        """
        frames = []
        frame = self.frame
        while frame is not None:
            file = frame.f_code.co_filename
            if file == _ENTRY:
                break
            if not file.startswith(_TORCH):
                frames.append(traceback.FrameSummary(file, frame.f_lineno, "forward", line=""))
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


class _Quiet:
    """Standard error without the graph that torch prints when a trace fails."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.hidden = stream, False

    def write(self, text: str) -> int:
        """Pass on everything but that graph and the end of its line."""
        self.hidden = "def forward(self, arg" in text or (self.hidden and text == "\n")
        return len(text) if self.hidden else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self.stream, name)
