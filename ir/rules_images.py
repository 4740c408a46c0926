"""Rules of convolutions, pooling and normalisations over channels: [B, C, ...] tensors.

Spatial dims are whole (halos are not exchanged). Batch and channels are the loops that can be cut:
a convolution is a product over channels, column- or row-parallel in the tensor role as a linear is
(rules_matmul); with groups only the batch is cut.
"""

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operands, companion, resolved, rule
from shardwise.ir.strategy import Role

_CHANNELS = 1


@rule(
    *(f"aten.conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")),
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input",
)  # fmt: skip
def convolution(operands: Operands) -> Decision:
    """y[b, n, ...] = sum over k and the window of x[b, k, ...] w[n, k, ...] + bias[n].

    Transposed: w[k, n, ...]. Without a batch dim all is whole.
    """
    x, weight = operands.values[:2]
    if len(x.spec.shape) != len(weight.spec.shape):
        return operands.decide({}, WHOLE)
    state = resolved(x, operands.setting)
    if isinstance(state, Sharded) and state.dim > _CHANNELS:
        state = _batch_home(operands)
    grouped = operands.argument(6, "groups", 1) != 1
    n_dim = 1 if "transpose" in operands.operator.kind else 0
    at_channels = isinstance(state, Sharded) and state.dim == _CHANNELS
    if at_channels and grouped:
        return operands.decide({}, WHOLE)
    if at_channels:
        assert isinstance(state, Sharded)
        reads: dict[int, AxisState] = {0: state, 1: Sharded(1 - n_dim, state.outer)}
        written: AxisState = ADDEND
    elif (
        operands.setting.role is Role.TENSOR
        and not isinstance(state, Sharded)
        and not grouped
        and weight.is_parameter
        and operands.setting.divides(weight.spec.shape[n_dim])
    ):
        reads, written = {0: READ, 1: Sharded(n_dim)}, Sharded(_CHANNELS)
    else:
        reads, written = {0: state, 1: companion(state)}, state
    bias = operands.index(2, "bias")
    if bias is not None:
        of_channels = isinstance(written, Sharded) and written.dim == _CHANNELS
        reads[bias] = (
            Sharded(0) if of_channels else ADDEND if written is ADDEND else companion(written)
        )
    return operands.decide(reads, written)


def _batch_home(operands: Operands) -> AxisState:
    """The batch, where the axis has it; a cut of a spatial dim is given up."""
    home = operands.setting.home(operands.values[0].spec)
    return home if isinstance(home, Sharded) and home.dim == 0 else WHOLE


_POOLED_DIMS = {
    **{f"aten.{name}_pool{n}d.default": n for name in ("max", "avg") for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": n for n in (1, 2, 3)},
    "aten.upsample_nearest1d.vec": 1,
    "aten.upsample_nearest2d.vec": 2,
    "aten.upsample_nearest3d.vec": 3,
    "aten.upsample_linear1d.vec": 1,
    "aten.upsample_bilinear2d.vec": 2,
    "aten.upsample_bicubic2d.vec": 2,
    "aten.upsample_trilinear3d.vec": 3,
}
"""Kind -> how many of the last dims it works on."""


@rule(*_POOLED_DIMS)
def pool(operands: Operands) -> Decision:
    """Every image and channel on its own: only the last dims are whole."""
    value = operands.values[0]
    free = len(value.spec.shape) - _POOLED_DIMS[operands.operator.kind]
    state = resolved(value, operands.setting)
    if isinstance(state, Sharded) and state.dim < free:
        return operands.decide({0: state}, state)
    return operands.decide({}, WHOLE)


@rule("aten.batch_norm.default")
def batch_norm(operands: Operands) -> Decision:
    """Every channel on its own, over the whole batch.

    In training, statistics are of all documents: rows of the batch go to channels by all-to-all and
    back, as query rows go to heads in attention. In evaluation they are given, so that rows stay.
    """
    value = operands.values[0]
    state = resolved(value, operands.setting)
    if not isinstance(state, Sharded):
        return operands.decide({}, WHOLE)
    training = operands.argument(5, "training", True) is not False
    if state.dim != _CHANNELS and not training:
        reads: dict[int, AxisState] = dict.fromkeys(range(len(operands.values)), READ)
        return operands.decide(reads | {0: state}, state)
    after = None if state.dim == _CHANNELS else state
    if state.dim != _CHANNELS and not operands.setting.divides(value.spec.shape[_CHANNELS]):
        return operands.decide({}, WHOLE, afterwards=after)
    channels = state if state.dim == _CHANNELS else Sharded(_CHANNELS)
    reads = {i: Sharded(0, channels.outer) for i in range(len(operands.values))}
    return operands.decide(reads | {0: channels}, channels, afterwards=after)


@rule("aten.group_norm.default")
def group_norm(operands: Operands) -> Decision:
    """Every document on its own; channels and space are whole."""
    state = resolved(operands.values[0], operands.setting)
    if isinstance(state, Sharded) and state.dim > 0:
        state = _batch_home(operands)
    reads: dict[int, AxisState] = {i: companion(state) for i in range(len(operands.values))}
    return operands.decide(reads | {0: state}, state)
