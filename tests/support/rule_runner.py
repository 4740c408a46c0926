"""One operator on simulated ranks, its operands in any state, against the whole operator.

The operator is placed by `localise`'s own pass (its rule, the moves, the call at local sizes),
emitted, and run forward and backward on every rank; outputs and gradients are brought together
again and compared with torch on whole tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import sympy
import torch

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded, value_layout
from shardwise.ir.expression import evaluate, symbol
from shardwise.ir.layout import Layout, Partial
from shardwise.ir.localise import _Pass, _place, _Value, settings
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call, UnitProgram, value_name
from shardwise.ir.rules import Setting
from shardwise.ir.strategy import Role
from shardwise.ir.template import Unit
from shardwise.ir.tensor import TensorSpec
from shardwise.runtime.emit import aten, emit_unit
from shardwise.runtime.program import _module
from shardwise.runtime.redistribute import Router
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.rig import strategy

B, S = symbol("B"), symbol("S")
R = Layout(())
TOLERANCE = 1e-12
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Operand:
    """A tensor that the operator reads."""

    shape: tuple
    values: str = "normal"
    """normal, positive, unit (in 0..1), bool, ids:N (integers below N), counts (1 to 5), targets:N
    (ids, some of them -100)."""
    gradient: bool = True
    parameter: bool = False

    @property
    def spec(self) -> TensorSpec:
        kind = self.values.split(":")[0]
        integers = ("ids", "targets", "counts")
        dtype = "bool" if kind == "bool" else "int64" if kind in integers else "float64"
        return TensorSpec(self.shape, dtype)

    @property
    def trains(self) -> bool:
        return self.gradient and self.spec.dtype == "float64"


@dataclass(frozen=True)
class Case:
    """An operator on named operands (`Ref("a")` in its arguments)."""

    kind: str
    operands: Mapping[str, Operand]
    args: tuple
    outputs: tuple[TensorSpec, ...]
    kwargs: tuple = ()

    @property
    def operator(self) -> Operator:
        return Operator("op", self.kind, self.args, self.kwargs, self.outputs)


def sizes_for(mesh: Mesh, implementation: str, batch: int, length: int) -> dict[str, int]:
    """B and S padded as the executor does: multiples of what the strategy splits."""
    roles = settings(strategy(implementation, mesh), mesh)
    batch += not any(one.role is Role.BATCH for one in roles)  # a trace is for 2 or more
    for one in roles:
        batch *= one.size if one.role is Role.BATCH else 1
        length *= one.size if one.sequence_home else 1
    return {"B": batch, "S": length}


def possible_states(operand: Operand, setting: Setting) -> list[AxisState]:
    """Every state in which a value may arrive on an axis."""
    if operand.parameter:
        return [WHOLE]
    states: list[AxisState] = [WHOLE]
    for dim, length in enumerate(operand.shape):
        for outer in _outers(length):
            middle = sympy.cancel(sympy.sympify(length) / outer)
            if middle != 1 and setting.divides(middle):
                states.append(Sharded(dim, outer))
    if operand.spec.dtype == "float64":
        states.append(ADDEND)
    return states


def _outers(length: int | sympy.Expr) -> list[int | sympy.Expr]:
    if isinstance(length, int):
        return [k for k in range(1, length) if length % k == 0]
    result: list[int | sympy.Expr] = [1]
    for factor in sorted(length.as_ordered_factors(), key=str)[:-1]:
        result.append(int(factor) if factor.is_Integer else factor)
    return result


def is_even(
    states: tuple[AxisState, ...], shape: tuple, mesh: Mesh, sizes: Mapping[str, int]
) -> bool:
    """Whether the cuts of all axes together leave every rank an equal part."""
    concrete = _at(shape, sizes)
    try:
        layout = value_layout(dict(zip(mesh.axis_names, states, strict=True)), mesh).forward
        layout = layout.at(sizes)
        parts = [layout.local_shape(concrete, mesh, r) for r in range(mesh.world_size)]
    except ValueError:
        return False
    total = 1
    for axis, state in zip(mesh.axes, states, strict=True):
        total *= axis.size if isinstance(state, Sharded) else 1
    whole, part = 1, 1
    for n, m in zip(concrete, parts[0], strict=True):
        whole, part = whole * n, part * m
    return len(set(parts)) == 1 and part * total == whole


def _at(shape: tuple, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(n if isinstance(n, int) else int(evaluate(n, sizes)) for n in shape)


def make_values(case: Case, sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:
    """Whole operands."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for name, operand in case.operands.items():
        shape = _at(operand.shape, sizes)
        kind, _, bound = operand.values.partition(":")
        if kind == "bool":
            x = torch.rand(shape, generator=generator) < 0.6
        elif kind == "counts":
            x = torch.randint(1, 6, shape, generator=generator)
        elif kind == "unit":
            x = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1
        elif kind in ("ids", "targets"):
            x = torch.randint(0, int(bound), shape, generator=generator)
            if kind == "targets":
                x = torch.where(torch.rand(shape, generator=generator) < 0.3, -100, x)
        else:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            x = x.abs() + 0.5 if kind == "positive" else x
        values[name] = x
    return values


def whole_operator(
    case: Case, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], list[torch.Tensor]]:
    """Outputs, gradients by operand, and the cotangents that were used, in one process."""
    leaves = {
        name: value.clone().requires_grad_(case.operands[name].trains)
        for name, value in values.items()
    }

    def concrete(value: Argument) -> object:
        if isinstance(value, Ref):
            return leaves[value.name]
        if isinstance(value, tuple):
            return [concrete(item) for item in value]
        if isinstance(value, Dtype):
            return getattr(torch, value.name)
        return evaluate(value, sizes) if isinstance(value, sympy.Expr) else _plain(value)

    target = aten(case.operator)
    kwargs = {key: concrete(value) for key, value in case.kwargs}
    result = target(*(concrete(value) for value in case.args), **kwargs)
    outputs = list(result) if isinstance(result, list | tuple) else [result]
    cotangents = [_cotangent(out) for out in outputs]
    return outputs, _gradients(outputs, cotangents, leaves), cotangents


def _plain(value: Argument) -> object:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def _cotangent(out: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64)


def _gradients(
    outputs: list[torch.Tensor], cotangents: list[torch.Tensor], leaves: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    terms = [(o * c).sum() for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if not terms or not trained:
        return {name: torch.zeros_like(leaf) for name, leaf in trained.items()}
    found = torch.autograd.grad(sum(terms), list(trained.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if g is None else g.detach()
        for (name, leaf), g in zip(trained.items(), found, strict=True)
    }


def place_case(
    case: Case, mesh: Mesh, implementation: str, states: Mapping[str, tuple[AxisState, ...]]
) -> tuple[UnitProgram, _Pass]:
    """The steps that the operator becomes, its outputs made whole at the end."""
    run = _Pass(None, mesh, [Unit("one", (0, 1))])  # type: ignore[arg-type]
    for name, operand in case.operands.items():
        run.values[name] = _Value(
            operand.spec, states[name], name, 0, operand.trains, operand.parameter, {}
        )
    _place(run, case.operator, settings(strategy(implementation, mesh), mesh), 0)
    names = [value_name("op", i) for i in range(len(case.outputs))]
    writes = tuple(run.read(name, run.whole, 0) for name in names)
    steps = tuple(run.steps[0])
    reads = tuple(name for name, operand in case.operands.items() if not operand.parameter)
    return UnitProgram("one", steps, reads, writes), run


def check_case(
    case: Case,
    mesh: Mesh,
    implementation: str,
    sizes: Mapping[str, int],
    states: Mapping[str, tuple[AxisState, ...]],
    seed: int = 0,
) -> Call:
    """Run the case on all ranks and compare; returns the call that it became."""
    torch.set_num_threads(1)
    values = make_values(case, sizes, seed)
    outputs, gradients, cotangents = whole_operator(case, values, sizes)
    unit, run = place_case(case, mesh, implementation, states)
    (call,) = (step for step in unit.steps if isinstance(step, Call))

    def rank(communicator):
        names = mesh.axis_names
        groups = [(n,) for n in names] + [names, names[::-1]]
        communicator.declare_groups(tuple(g for axes in groups for g in mesh.groups(axes)))
        router = Router(mesh, communicator, CPU)
        names = tuple(sizes)
        emitted = emit_unit(unit, names, CPU, lambda step: _module(step, router, names))
        layouts, leaves = {}, {}
        for name, operand in case.operands.items():
            if operand.parameter:
                continue
            layout = run.layout(states[name]).at(sizes)
            layouts[name] = layout.gradient
            leaves[name] = _local(values[name], layout.forward, router)
            leaves[name].requires_grad_(operand.trains)
        for use in emitted.uses:
            layout = use.layout.at(sizes)
            layouts[use.name] = layout.gradient
            leaves[use.name] = _local(values[use.parameter], layout.forward, router)
            leaves[use.name].requires_grad_(case.operands[use.parameter].trains)
        copies = [partial(leaves.__getitem__, use.name) for use in emitted.uses]
        reads = [leaves[name] for name in emitted.reads]
        found = emitted.module(*sizes.values(), *reads, *copies)
        if "empty" not in case.kind:
            _compare(found, outputs, "output")
        local = _gradients(list(found), cotangents, leaves)
        owners = {use.name: use.parameter for use in emitted.uses}
        total: dict[str, torch.Tensor] = {}
        for name, gradient in local.items():
            owner = owners.get(name, name)
            shape = tuple(values[owner].shape)
            whole = router.run(gradient.contiguous(), layouts[name], R, shape)
            total[owner] = total[owner] + whole if owner in total else whole
        _compare(
            [total.get(name, torch.zeros_like(g)) for name, g in gradients.items()],
            list(gradients.values()),
            f"gradient of {list(gradients)}",
        )

    run_ranks(mesh.world_size, rank, timeout_s=60)
    return call


def _local(whole: torch.Tensor, layout: Layout, router: Router) -> torch.Tensor:
    """This rank's part; addends are random and add up to the value."""
    axes = tuple(axis for axis, p in layout.entries if isinstance(p, Partial))
    value = whole
    if axes:
        group, place = router.group(axes), router.rank
        count, at = len(group), group.index(place)
        generator = torch.Generator().manual_seed(11)
        pieces = [
            torch.randn(whole.shape, generator=generator, dtype=torch.float64)
            for _ in range(count - 1)
        ]
        pieces.append(whole - sum(pieces))
        value = pieces[at]
    return router.run(value, R, layout.without(axes), tuple(whole.shape)).clone()


def _compare(found: list, wanted: list, what: str) -> None:
    assert len(found) == len(wanted)
    for index, (mine, whole) in enumerate(zip(found, wanted, strict=True)):
        assert mine.shape == whole.shape, f"{what} {index}: {mine.shape} != {whole.shape}"
        assert mine.dtype == whole.dtype, f"{what} {index}: {mine.dtype} != {whole.dtype}"
        if whole.dtype != torch.float64:
            assert torch.equal(mine, whole), f"{what} {index} differs"
        elif whole.numel():
            scale = max(1.0, float(whole.detach().abs().max()))
            error = float((mine.detach() - whole.detach()).abs().max()) / scale
            assert error <= TOLERANCE, f"{what} {index}: {error:.2e}"
