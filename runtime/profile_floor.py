"""The launch floor: a small model through the runtime's own executor, per operator and pass.

The model is as small as a decoder gets, so its operators cost what it takes to start them: Python,
dispatch, autograd. It is divided by what the planner's formula multiplies the floor with: every
call forward, every call with a gradient backward (a product twice, for each of its factors), and
every gradient that is accumulated.
"""

import torch
from torch import nn
from torch.nn import functional

from shardwise.ir.flops import is_product
from shardwise.ir.layout import Layout
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Call, LocalProgram, Use
from shardwise.ir.rest import Rest
from shardwise.ir.strategy import Recompute, Strategy
from shardwise.ir.trace_language import trace_language_model
from shardwise.runtime.emit import emit_unit
from shardwise.runtime.executor import BucketProgram, Executor
from shardwise.runtime.parameters import ParameterStore
from shardwise.runtime.profile_samples import Case, Group, Planned
from shardwise.runtime.redistribute import Router
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld

KEY = "launch floor"
WIDTH, HEADS, VOCABULARY, LENGTH, LAYERS = 16, 2, 32, 16, 2


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h = self.before(x)
        q, k, v = (
            part(h).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.after(x))))  # type: ignore[no-any-return]


class SmallDecoder(nn.Module):
    """input_ids, labels [B, S] -> mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        targets = functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def floor_groups(device: torch.device) -> list[Group]:
    """The small model's slot, forward and backward; one case, its x is 1."""
    executor, count = small_executor(device)
    ids = torch.arange(LENGTH, device=device).unsqueeze(0) % VOCABULARY

    def run() -> None:
        loss, _ = executor.run(0, {"input_ids": ids, "labels": ids})
        loss.backward()  # type: ignore[no-untyped-call]
        executor.store.end_micro_batch()

    return [Group(KEY, (Planned(KEY, 1.0, lambda: Case(KEY, 1.0, run, count)),))]


def small_executor(device: torch.device) -> tuple[Executor, int]:
    """The model on this rank alone, and how many floors its slot is priced at."""
    model = SmallDecoder()
    traced = trace_language_model(model, compute_dtype="float32", longest=LENGTH)
    graph, units, mesh = traced.graph, traced.units, Mesh(())
    strategy = Strategy("data", (), (), (), Recompute.NONE)
    program = localise(graph, units, mesh, [strategy] * len(units))
    router = Router(mesh, ThreadCommunicator(0, ThreadWorld(1)), device)
    sizes = tuple(symbol.name for symbol in graph.symbols)
    emitted = tuple(emit_unit(unit, sizes, device, _no_module) for unit in program.units)
    values = dict(model.named_parameters())
    store = ParameterStore(
        [
            Rest(p.name, tuple(map(int, p.spec.shape)), Layout(), Layout(), Lifetime.STEP)
            for p in graph.parameters
        ],
        [step for step in program.steps() if isinstance(step, Use)],
        router,
        lambda name: values[name],
        master_dtype=torch.float32,
        reduce_dtype=torch.float32,
        accumulate_dtype=torch.float32,
    )
    bucket = BucketProgram(program, emitted, (Recompute.NONE,) * len(units), 1)
    constants = {name: value.to(device) for name, value in traced.constants.items()}
    return Executor(graph, [bucket], store, constants), floors(program)


def floors(program: LocalProgram) -> int:
    """How often the launch floor counts in a slot of a program all of whose operands need a
    gradient: a product's backward is two products."""
    count = 0
    for step in program.steps():
        if isinstance(step, Call):
            count += 1 + step.needs_gradient * (2 if is_product(step.operator.kind) else 1)
        elif isinstance(step, Use):
            count += 1
    return count


def _no_module(step: object) -> nn.Module:
    raise AssertionError(f"one rank moves nothing: {step}")
