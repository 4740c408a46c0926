"""A program on simulated or real ranks without a plan: mesh, strategy and parameter scheme by
hand."""

import torch

from shardwise.ir.layout import Layout, Shard
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Use
from shardwise.ir.rest import WHOLE, Rest
from shardwise.ir.strategy import Recompute, Role, Strategy
from shardwise.runtime.emit import emit_unit
from shardwise.runtime.executor import BucketProgram, Executor
from shardwise.runtime.parameters import ParameterStore
from shardwise.runtime.program import _module
from shardwise.runtime.redistribute import Router

B, S, T = Role.BATCH, Role.SEQUENCE, Role.TENSOR
SCHEMES = ("ddp", "zero1", "zero2", "zero3")


def strategy(implementation, mesh, recompute=Recompute.NONE):
    """The strategy of that name on x0, with `data` splitting the batch."""
    role = {"data": B, "tensor": T, "tensor_sequence": T, "ulysses": S}[implementation]
    roles = tuple((a.name, B if a.name == "data" else role) for a in mesh.axes)
    return Strategy(implementation, roles, (), (), recompute)


def batch_axes(one):
    return tuple(axis for axis, role in one.roles if role is B)


def scheme_rest(name, shape, mesh, scheme, tensor_dim):
    """Master sharded on the tensor dim (dim 0 without one) over all axes, as the scheme says."""
    cut = Layout(tuple((axis.name, Shard(tensor_dim)) for axis in mesh.axes))
    master = WHOLE if scheme == "ddp" else cut
    accumulator = WHOLE if scheme in ("ddp", "zero1") else cut
    lifetime = Lifetime.USE if scheme == "zero3" else Lifetime.STEP
    return Rest(name, shape, master, accumulator, lifetime)


class Rig:
    """Executor and store of one rank for several strategies (one bucket each)."""

    def __init__(self, communicator, graph, units, mesh, strategies, scheme, full, tensor_dim):
        mesh = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
        names = mesh.axis_names
        combos = [(n,) for n in names] + ([names] if len(names) > 1 else [])
        communicator.declare_groups(tuple(g for c in combos for g in mesh.groups(c)))
        communicator.declare_groups((tuple(range(mesh.world_size)),))
        self.mesh, self.communicator, self.graph = mesh, communicator, graph
        self.router = Router(mesh, communicator, torch.device("cpu"))
        self.programs = [localise(graph, units, mesh, [one] * len(units)) for one in strategies]
        sizes = tuple(s.name for s in graph.symbols)
        buckets = []
        for one, local in zip(strategies, self.programs, strict=True):
            emitted = tuple(
                emit_unit(u, sizes, torch.device("cpu"), lambda x: _module(x, self.router, sizes))
                for u in local.units
            )
            again = tuple(one.recompute if u.module_path else Recompute.NONE for u in units)
            degree = 1
            for axis in batch_axes(one):
                degree *= mesh.axis(axis).size
            buckets.append(BucketProgram(local, emitted, again, degree))
        self.rests = tuple(
            scheme_rest(
                p.name,
                tuple(p.spec.shape),
                mesh,
                scheme,
                tensor_dim.get(p.name.split(".")[-1], 0),
            )
            for p in graph.parameters
        )
        uses = [s for p in self.programs for s in p.steps() if isinstance(s, Use)]
        dtype = torch.float64
        self.store = ParameterStore(
            self.rests, uses, self.router, lambda name: full[name],
            master_dtype=dtype, reduce_dtype=dtype, accumulate_dtype=dtype,
        )  # fmt: skip
        self.executor = Executor(graph, buckets, self.store, {})
        self.strategies = strategies

    def local(self, bucket, whole):
        """This rank's documents of a global [B, S] tensor under a bucket's strategy."""
        layout = Layout(tuple((a, Shard(0)) for a in batch_axes(self.strategies[bucket])))
        return self.router.run(whole, WHOLE, layout, tuple(whole.shape))

    def slot(self, bucket, **inputs):
        """Forward and backward of one global batch of inputs."""
        batch = {name: self.local(bucket, whole) for name, whole in inputs.items()}
        loss, weight = self.executor.run(bucket, batch)
        loss.backward()
        return loss.item(), weight.item()

    def whole_gradients(self, scale=1.0):
        """Global gradients of the accumulated slots, on every rank."""
        return {
            name: self.router.run(
                value,
                self.store.states[name].rest.master,
                WHOLE,
                self.store.states[name].rest.shape,
            )
            for name, value in self.store.gradients(scale).items()
        }
