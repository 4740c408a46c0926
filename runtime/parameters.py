"""Parameters at rest: master shards, compute copies, one gradient accumulator each.

Three layouts of the plan (design vocabulary) meet here: the master (shared by all buckets), the
layout in which a bucket uses the parameter, and the accumulator (shared by all buckets).

    forward   master -> use                  gather what the rank lacks, as often as the
    lifetime says backward  gradient as left -> stored     within the micro-batch step end
    stored -> master               then one scale by 1 / (sum of the loss weights)

`stored` is the accumulator layout, but for axes on which the reduction waits (ir/rest.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardwise.ir.layout import Layout
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Use
from shardwise.ir.rest import WHOLE, Rest, copy_layout, stored_layout, uses_by_parameter
from shardwise.runtime.redistribute import Router
from shardwise.runtime.regather import Regather


@dataclass
class _State:
    """One parameter of this rank."""

    rest: Rest
    local: torch.Tensor
    stored: Layout
    step_layout: Layout
    sum: torch.Tensor | None = None
    copies: dict[tuple[Layout, torch.dtype], torch.Tensor] = field(default_factory=dict)


class ParameterStore:
    """The parameters of one rank for all buckets of a plan.

    `full(name)` gives the global value from which this rank keeps its shard; it may be called
    once per parameter. Tensors are local; the program wraps them as DTensors for optimizers and
    checkpoints.
    """

    def __init__(
        self,
        rests: Sequence[Rest],
        uses: Sequence[Use],
        router: Router,
        full: Callable[[str], torch.Tensor],
        *,
        master_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        accumulate_dtype: torch.dtype,
        trainable: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.router = router
        self.reduce_dtype, self.accumulate_dtype = reduce_dtype, accumulate_dtype
        self.trainable = trainable
        self.anchor = torch.zeros((), requires_grad=True)
        by_name = uses_by_parameter(uses)
        self._copy_dtypes = {
            name: sorted({getattr(torch, use.spec.dtype) for use in found}, key=str)
            for name, found in sorted(by_name.items())
        }
        self.states: dict[str, _State] = {}
        for rest in rests:
            value = full(rest.name).detach().to(router.device, master_dtype)
            local = router.run(value, WHOLE, rest.master, rest.shape).contiguous()
            local = local.clone() if _shares_memory(local, value) else local
            mine = by_name.get(rest.name, ())
            self.states[rest.name] = _State(
                rest, local, stored_layout(rest, mine, router.mesh), copy_layout(mine)
            )

    def use(self, use: Use, regather: Regather | None = None) -> torch.Tensor:
        """The compute copy for one use, with a gradient that lands in the accumulator.

        With `regather`, a copy whose lifetime is `use` is noted there when it is new memory.
        """
        if not (torch.is_grad_enabled() and self.trainable(use.parameter)):
            return self.compute_copy(use)
        copy: torch.Tensor = _Used.apply(  # type: ignore[no-untyped-call]
            self.anchor, self, use, regather
        )
        state = self.states[use.parameter]
        if (
            regather is not None
            and state.rest.lifetime is Lifetime.USE
            and copy.untyped_storage().data_ptr() != state.local.untyped_storage().data_ptr()
        ):
            regather.watch(use, copy)
        return copy

    def compute_copy(self, use: Use) -> torch.Tensor:
        """The parameter in the layout of `use`; gathered now, or cut from a copy that lives
        longer."""
        state = self.states[use.parameter]
        dtype = getattr(torch, use.spec.dtype)
        target = use.layout.forward
        if state.rest.lifetime is Lifetime.USE:
            return self._gather(state, target, dtype)
        key = (state.step_layout, dtype)
        if key not in state.copies:
            state.copies[key] = self._gather(state, state.step_layout, dtype)
        return self.router.run(state.copies[key], state.step_layout, target, state.rest.shape)

    def _gather(self, state: _State, target: Layout, dtype: torch.dtype) -> torch.Tensor:
        with torch.no_grad():
            local = state.local.to(dtype)
            return self.router.run(local, state.rest.master, target, state.rest.shape)

    def prepare(self) -> None:
        """Gather every copy that lives for a step, so that no slot pays for it."""
        for name, dtypes in self._copy_dtypes.items():
            state = self.states[name]
            for dtype in dtypes:
                key = (state.step_layout, dtype)
                if state.rest.lifetime is Lifetime.STEP and key not in state.copies:
                    state.copies[key] = self._gather(state, state.step_layout, dtype)

    def discard_gradients(self) -> None:
        """Empty the accumulators."""
        for state in self.states.values():
            state.sum = None

    def accumulate(self, use: Use, gradient: torch.Tensor) -> None:
        """Add a gradient that a bucket leaves in `use.layout.gradient` to the accumulator."""
        state = self.states[use.parameter]
        part = self.router.run(
            gradient.to(self.reduce_dtype), use.layout.gradient, state.stored, state.rest.shape
        ).to(self.accumulate_dtype)
        if state.sum is None:
            state.sum = part.clone() if _shares_memory(part, gradient) else part
        else:
            state.sum += part

    def gradients(self, scale: float) -> dict[str, torch.Tensor]:
        """Local gradients in the master layout, scaled; accumulators are emptied.

        A collective of all ranks. A parameter that no slot of the step used has a zero gradient.
        """
        result = {}
        for name, state in self.states.items():
            if not self.trainable(name):
                continue
            if state.sum is None:
                result[name] = torch.zeros_like(state.local)
                continue
            total = self.router.run(state.sum, state.stored, state.rest.master, state.rest.shape)
            result[name] = (total * scale).to(state.local.dtype).contiguous()
            state.sum = None
        return result

    def end_micro_batch(self) -> None:
        """Drop copies that live for a micro-batch."""
        for state in self.states.values():
            if state.rest.lifetime is Lifetime.MICRO_BATCH:
                state.copies.clear()

    def refresh(self) -> None:
        """Drop every compute copy: the masters have changed."""
        for state in self.states.values():
            state.copies.clear()

    def full(self, name: str) -> torch.Tensor:
        """The whole master of a parameter, on every rank: a collective of all ranks."""
        state = self.states[name]
        return self.router.run(state.local, state.rest.master, WHOLE, state.rest.shape)


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage: a slice does, wherever it begins."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class _Used(torch.autograd.Function):
    """A parameter enters the graph: forward gives the copy, backward feeds the accumulator."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        store: ParameterStore,
        use: Use,
        regather: Regather | None,
    ) -> torch.Tensor:
        ctx.store, ctx.use, ctx.regather = store, use, regather
        return store.compute_copy(use).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None, None]:
        ctx.store.accumulate(ctx.use, gradients[0])
        if ctx.regather is not None:
            ctx.regather.drop(ctx.use)
        return None, None, None, None


def square_sum(
    locals_: Mapping[str, torch.Tensor], layouts: Mapping[str, Layout], router: Router
) -> torch.Tensor:
    """Sum of squares of global tensors given by local parts, each element counted once; float64.

    A part that is replicated over an axis is counted at the axis's first place only. A
    collective of all ranks.
    """
    total = torch.zeros((), dtype=torch.float64, device=router.device)
    for name, local in locals_.items():
        sharded = {axis for axis, _ in layouts[name].entries}
        if all(router.place(a.name) == 0 for a in router.mesh.axes if a.name not in sharded):
            total += local.double().square().sum()
    return router.sum_over_world(total)
