"""Program: a plan and a model made runnable on this rank.

program = Program.from_plan(model, plan)
optimizer = torch.optim.AdamW(program.parameters(), lr=3e-4)
for bucket, batch in slots:
    program.run_slot(bucket, batch)          # forward, backward, gradients accumulate
program.finish_step()                        # .grad on every master, scaled by 1 / weight
program.clip_grad_norm_(1.0)
optimizer.step(); program.refresh(); optimizer.zero_grad()
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.layout import Layout, to_dtensor_placements
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.plan import Plan
from shardwise.ir.program import Call, LocalProgram, Move, Use
from shardwise.ir.rest import check_trained, rests
from shardwise.ir.strategy import Recompute, Strategy
from shardwise.ir.trace import TracedModel
from shardwise.ir.trace_export import LossFunction
from shardwise.ir.trace_training import Inputs, trace_of_plan
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.emit import emit_unit
from shardwise.runtime.executor import BucketProgram, Executor
from shardwise.runtime.library import LIBRARY
from shardwise.runtime.parameters import ParameterStore, square_sum
from shardwise.runtime.ranks import this_process
from shardwise.runtime.redistribute import Redistribution, Router

_CLIP_EPSILON = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm before it divides (torch 2.13)."""


@dataclass(frozen=True)
class SlotResult:
    """Of one micro-batch, over all ranks."""

    loss_sum: float
    weight: float
    """What the loss sum is divided by: the number of targets."""


class Program:
    """The runnable form of a plan on one rank; make it with `from_plan`."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        store: ParameterStore,
        router: Router,
        *,
        device_mesh: DeviceMesh | None,
    ) -> None:
        self.plan, self.executor, self.store, self.router = plan, executor, store, router
        self._weight = 0.0
        self._masters = {
            name: _master(
                state.local, state.rest.master, state.rest.shape, router.mesh, device_mesh
            )
            for name, state in store.states.items()
        }
        for name, master in self._masters.items():
            master.requires_grad_(store.trainable(name))

    @classmethod
    def from_plan(
        cls,
        model: nn.Module,
        plan: Plan,
        traced: TracedModel | None = None,
        communicator: Communicator | None = None,
        *,
        inputs: Inputs | None = None,
        loss: LossFunction | None = None,
        device: torch.device | str = "cpu",
    ) -> "Program":
        """Emit every bucket's program and take this rank's shards of the model's parameters.

        `traced` is the trace of `model` in the plan's compute dtype; without it the model is traced
        here, with `inputs` and `loss` as they were given to `plan` (default: a language model that
        returns its loss). `communicator` is by default this process's: of torchrun's ranks, or of
        one rank alone (`ranks.this_process`). The model's own weights are read once and not kept.
        A collective of all ranks (groups are made). Raises MismatchError where the plan is for
        another world size or another model.
        """
        mesh, device = plan.mesh, torch.device(device)
        communicator = communicator or this_process(device)
        plan.check_world(communicator.world_size)
        traced = traced or trace_of_plan(model, plan, inputs, loss)
        plan.check_model(traced.fingerprint)
        graph, units = traced.graph, traced.units
        check_trained(graph, plan.training)
        declare_groups(plan, communicator)
        router = Router(mesh, communicator, device)
        sizes = tuple(symbol.name for symbol in graph.symbols)
        programs: dict[tuple[Strategy, ...], LocalProgram] = {}
        buckets = []
        for bucket in plan.buckets:
            strategies = tuple(plan.strategy(i) for i in plan.unit_strategies(bucket))
            if strategies not in programs:
                programs[strategies] = localise(graph, units, mesh, strategies)
            local = programs[strategies]
            emitted = tuple(
                emit_unit(unit, sizes, device, lambda step: _module(step, router, sizes))
                for unit in local.units
            )
            _check_recompute(strategies)
            recompute = tuple(
                strategy.recompute if unit.module_path else Recompute.NONE
                for strategy, unit in zip(strategies, units, strict=True)
            )
            buckets.append(BucketProgram(local, emitted, recompute, bucket.batch_degree))
        values = dict(model.named_parameters(remove_duplicate=False))
        spec = plan.training
        store = ParameterStore(
            rests(graph, plan.parameters),
            [s for p in programs.values() for s in p.steps() if isinstance(s, Use)],
            router,
            lambda name: _full_value(graph, name, values),
            master_dtype=getattr(torch, spec.master_dtype),
            reduce_dtype=getattr(torch, spec.reduce_dtype),
            accumulate_dtype=getattr(torch, spec.accumulate_dtype),
            trainable=spec.trains,
        )
        constants = _constants(traced, model, device)
        executor = Executor(graph, buckets, store, constants)
        return cls(plan, executor, store, router, device_mesh=_device_mesh(mesh, device))

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self.router.rank

    def run_slot(self, bucket: int, batch: Mapping[str, torch.Tensor]) -> SlotResult:
        """Forward and backward of one micro-batch; all ranks run the same bucket.

        `batch` is this rank's part of every input: [seats, padded length] of its replica.
        """
        self.store.prepare()
        loss, weight = self.executor.run(bucket, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.store.end_micro_batch()
        self._weight += float(weight)
        return SlotResult(float(loss.detach()), float(weight))

    @torch.no_grad()
    def evaluate(self, bucket: int, batch: Mapping[str, torch.Tensor]) -> SlotResult:
        """The loss of one micro-batch without gradients."""
        loss, weight = self.executor.run(bucket, batch)
        return SlotResult(float(loss), float(weight))

    def finish_step(self) -> float:
        """Leave the gradient of the mean loss on every master; returns the step's weight.

        Raises InvalidValueError when no slot of the step had a target.
        """
        if self._weight <= 0:
            raise InvalidValueError(
                "no document of this step has a target token: there is no loss to take the mean "
                "of; check the label mask and the documents' lengths"
            )
        weight, self._weight = self._weight, 0.0
        for name, gradient in self.store.gradients(1.0 / weight).items():
            master = self._masters[name]
            if isinstance(master, DTensor):
                master.grad = _as_dtensor(gradient, master)
            else:
                master.grad = gradient
        return weight

    def discard_gradients(self) -> None:
        """Forget the slots run since the last step."""
        self._weight = 0.0
        self.store.discard_gradients()

    def prepare(self) -> None:
        """Gather the copies that live for a step; `run_slot` does it where it was not done."""
        self.store.prepare()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients so that their global 2-norm is at most `max_norm`; returns the
        norm. The scale is that of `torch.nn.utils.clip_grad_norm_`, its 1e-6 included."""
        gradients = {
            name: _local(master.grad)
            for name, master in self._masters.items()
            if master.grad is not None
        }
        layouts = {name: self.store.states[name].rest.master for name in gradients}
        norm = float(square_sum(gradients, layouts, self.router).sqrt())
        scale = max_norm / (norm + _CLIP_EPSILON)
        if not scale >= 1.0:  # nan, too, reaches every gradient, as it does in torch
            for gradient in gradients.values():
                gradient.mul_(scale)
        return norm

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The masters under the model's own names (sections of fused weights as `name#section`)."""
        yield from self._masters.items()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The masters that train: what an elementwise optimizer steps."""
        for master in self._masters.values():
            if master.requires_grad:
                yield master

    def refresh(self) -> None:
        """The masters have changed: compute copies are gathered again when they are next used."""
        self.store.refresh()

    def code(self, bucket: int) -> str:
        """The emitted Python of a bucket's units, equal layers once."""
        seen: dict[str, str] = {}
        for unit in self.executor.buckets[bucket].units:
            seen.setdefault(unit.module.code, type(unit.module).__name__)
        return "\n".join(f"# {name}\n{code}" for code, name in seen.items())


def declare_groups(plan: Plan, communicator: Communicator) -> None:
    """Make the process groups that the plan lists, in its order, and the group of all ranks."""
    groups = [group for axes in plan.groups for group in plan.mesh.groups(axes)]
    communicator.declare_groups((*groups, tuple(range(plan.mesh.world_size))))


def _module(step: Move | Call, router: Router, sizes: tuple[str, ...]) -> nn.Module:
    if isinstance(step, Move):
        return Redistribution(step, router, sizes)
    assert step.library is not None and step.library_axis is not None
    return LIBRARY[step.library](router, step.library_axis, step.operator)


def _check_recompute(strategies: Sequence[Strategy]) -> None:
    for strategy in strategies:
        if strategy.recompute not in (Recompute.NONE, Recompute.LAYER):
            raise UnsupportedError(
                f"strategy {strategy.implementation} has recompute={strategy.recompute}, which is "
                "priced and not run yet; make the plan with recompute none or layer"
            )


def _full_value(
    graph: OperatorGraph, name: str, values: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The global value of a parameter, or of the section of a fused one."""
    if name in values:
        return values[name]
    parameter = next(p for p in graph.parameters if p.name == name)
    if parameter.section is not None:
        section = parameter.section
        return values[section.source].narrow(
            section.dim, section.start, section.stop - section.start
        )
    return next(values[alias] for alias in parameter.aliases if alias in values)


def _constants(
    traced: TracedModel, model: nn.Module, device: torch.device
) -> dict[str, torch.Tensor]:
    graph = traced.graph
    buffers = {**traced.constants, **dict(model.named_buffers(remove_duplicate=False))}
    missing = [c.name for c in graph.constants if c.name not in buffers]
    if missing:
        raise InvalidValueError(
            f"the trace has constants that the model does not hold as buffers: {missing}; register "
            "them as buffers in the model"
        )
    return {c.name: buffers[c.name].to(device) for c in graph.constants}


def _device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh | None:
    """torch's mesh over permuted ranks; None for simulated ranks, which have no process group."""
    if not dist.is_initialized() or dist.get_world_size() != mesh.world_size or not mesh.axes:
        return None
    # As lists: torch 2.13 reads the memory of a transposed array in its own order.
    return DeviceMesh(device.type, mesh.rank_grid().tolist(), mesh_dim_names=mesh.axis_names)


def _master(
    local: torch.Tensor,
    layout: Layout,
    shape: tuple[int, ...],
    mesh: Mesh,
    device_mesh: DeviceMesh | None,
) -> nn.Parameter:
    """A master as optimizers and checkpoints see it; shares memory with `local`."""
    if device_mesh is None:
        return nn.Parameter(local)
    placements: list[Placement] = [
        Shard(int(where)) if kind == "shard" else Replicate()
        for kind, where in to_dtensor_placements(layout, mesh)
    ]
    stride = torch.empty(shape, device="meta").stride()
    return nn.Parameter(
        DTensor.from_local(
            local,
            device_mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )
    )


def _as_dtensor(local: torch.Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
