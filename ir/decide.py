"""How one operator computes under a strategy: its rule on every mesh axis, checked together."""

from collections.abc import Sequence

from shardwise.ir import (  # noqa: F401  (the rule modules fill the registry)
    rules_dropout,
    rules_images,
    rules_index,
    rules_matmul,
    rules_model,
    rules_pointwise,
    rules_reduce,
    rules_view,
)
from shardwise.ir.axis_state import WHOLE, AxisState, Sharded, value_layout
from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.rewrite import argument
from shardwise.ir.rules import RULES, Decision, Operand, Operands, Setting, whole
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.tensor import TensorSpec

SEQUENCE_HOME = frozenset({"tensor_sequence", "ulysses"})
"""Implementations whose hidden states rest sharded over the sequence on the model axes."""
_RANDOM: dict[str, tuple[int, str]] = {
    "aten.dropout.default": (1, "p"),
    "aten.feature_dropout.default": (1, "p"),
    "aten.alpha_dropout.default": (1, "p"),
    "aten.native_dropout.default": (1, "p"),
    "aten.scaled_dot_product_attention.default": (4, "dropout_p"),
}
"""Kinds that drop at random -> where their probability stands; `train` follows p."""
_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "normal_", "uniform", "uniform_", "bernoulli", "bernoulli_", "multinomial", "poisson", "rrelu",
    "exponential", "exponential_", "geometric", "geometric_", "cauchy", "cauchy_", "log_normal",
    "log_normal_", "random", "random_", "binomial", "rrelu_with_noise", "gumbel_softmax",
})  # fmt: skip
"""Names of operators whose results differ from run to run, and from rank to rank."""
States = tuple[AxisState, ...]
"""One state per mesh axis, in mesh order."""


def settings(strategy: Strategy, mesh: Mesh) -> tuple[Setting, ...]:
    """The setting of every mesh axis under a strategy; axes that it leaves out replicate."""
    roles = dict(strategy.roles)
    sequence = strategy.implementation in SEQUENCE_HOME
    return tuple(
        Setting(
            axis.name,
            axis.size,
            role := roles.get(axis.name, Role.REPLICATE),
            sequence_home=sequence and role in (Role.TENSOR, Role.SEQUENCE),
        )
        for axis in mesh.axes
    )


def batch_degree(strategy: Strategy, mesh: Mesh) -> int:
    """Replicas that take different documents: the product of the axes that split the batch."""
    degree = 1
    for axis in strategy.axes(Role.BATCH):
        degree *= mesh.axis(axis).size
    return degree


def _check_random(operator: Operator) -> None:
    if operator.kind.split(".")[1] in _DRAWS:
        raise UnsupportedError(
            f"{operator.kind} in {operator.module_path or 'the model'} "
            f"({operator.source or 'unknown line'}) draws random numbers, which would differ "
            "between ranks and when a layer is recomputed; give them to the model as an input"
        )
    if operator.kind not in _RANDOM:
        return
    position, keyword = _RANDOM[operator.kind]
    probability = argument(operator, position, keyword, 0.0)
    trains = position != 1 or argument(operator, 2, "train", True) is not False
    if probability != 0.0 and trains:
        raise UnsupportedError(
            f"{operator.kind} in {operator.module_path or 'the model'} "
            f"({operator.source or 'unknown line'}) drops with probability {probability}: which "
            "elements that are has no sharded form in this version; set the dropout to 0"
        )


def decide(
    operator: Operator,
    operands: Sequence[tuple[Operand, ...]],
    setting: tuple[Setting, ...],
    mesh: Mesh,
    known: dict[tuple[object, ...], list[Decision]] | None = None,
) -> list[Decision]:
    """How an operator computes, one decision per axis; `operands[axis]` are its tensor operands.

    Each axis on its own, by the rule; where axes would together cut one dim in unequal parts, the
    last of them reads whole. `known` remembers decisions of a mesh: equal layers are decided once.
    Raises UnsupportedError for an operator that drops at random.
    """
    _check_random(operator)
    if not setting:
        return []
    if not operands[0]:
        return [_factory(operator) for _ in setting]
    if known is None:
        return _decide(operator, operands, setting, mesh)
    key = (
        operator.kind, without_names(operator.args),
        tuple((name, without_names(value)) for name, value in operator.kwargs),
        operator.outputs, tuple(operands), setting,
    )  # fmt: skip
    if key not in known:
        known[key] = _decide(operator, operands, setting, mesh)
    return known[key]


def without_names(value: Argument) -> object:
    """An argument in a form that hashes, with tensors as places only and every type told."""
    if isinstance(value, tuple):
        return tuple(map(without_names, value))
    return (type(value), None if isinstance(value, Ref) else value)


def _decide(
    operator: Operator,
    operands: Sequence[tuple[Operand, ...]],
    setting: tuple[Setting, ...],
    mesh: Mesh,
) -> list[Decision]:
    rule = RULES.get(operator.kind, whole)
    views = [Operands(operator, o, s) for o, s in zip(operands, setting, strict=True)]
    decisions = [rule(view) for view in views]
    specs = (*(value.spec for value in operands[0]), *operator.outputs)
    for axis in reversed(range(len(setting))):
        states = list(zip(*((*d.reads, *d.writes) for d in decisions), strict=True))
        if all(_is_even(s, spec, mesh) for s, spec in zip(states, specs, strict=True)):
            break
        decisions[axis] = whole(views[axis])
    return decisions


def _is_even(states: States, spec: TensorSpec, mesh: Mesh) -> bool:
    """Whether axes that cut one dim leave equal parts together; alone each does, by its rule."""
    cuts = [s.dim for s in states if isinstance(s, Sharded)]
    for dim in {d for d in cuts if cuts.count(d) > 1}:
        length = spec.shape[dim]
        if not isinstance(length, int):
            continue
        one = tuple(s if isinstance(s, Sharded) and s.dim == dim else WHOLE for s in states)
        named = dict(zip(mesh.axis_names, one, strict=True))
        shape = tuple(length if i == dim else 1 for i in range(len(spec.shape)))
        try:
            layout = value_layout(named, mesh).forward
            lengths = {layout.local_shape(shape, mesh, r)[dim] for r in range(mesh.world_size)}
        except InvalidValueError:  # fewer blocks are left than the outer counts
            return False
        if lengths != {length // _ranks(one, mesh)} or length % _ranks(one, mesh):
            return False
    return True


def _ranks(states: States, mesh: Mesh) -> int:
    """Parts that the sharding axes make together."""
    count = 1
    for axis, state in zip(mesh.axes, states, strict=True):
        count *= axis.size if isinstance(state, Sharded) else 1
    return count


def _factory(operator: Operator) -> Decision:
    """An operator without tensor operands makes the whole tensor on every rank."""
    return Decision((), tuple(WHOLE for _ in operator.outputs))


def parts(decisions: Sequence[Decision], setting: tuple[Setting, ...]) -> int:
    """How many ranks share the work: the axes on which it reads or writes a shard or an addend."""
    count = 1
    for decision, one in zip(decisions, setting, strict=True):
        states = (*decision.reads, *decision.writes)
        if any(isinstance(s, Sharded) for s in states):
            count *= one.size
    return count
