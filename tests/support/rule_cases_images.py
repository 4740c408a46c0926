"""Random one-operator cases of convolutions, pooling and normalisations over channels."""

from hypothesis import strategies as st

from shardwise.ir.argument import Ref
from shardwise.ir.tensor import TensorSpec
from tests.support.rule_runner import B, Case, Operand, S

a, b, c = Ref("a"), Ref("b"), Ref("c")
_SIDE = 4


def _spec(*shape):
    return TensorSpec(shape, "float64")


@st.composite
def convolution(draw, kind):
    """Channels that 2 and 4 divide or not, groups, strides; without a batch now and then."""
    space = int(kind[kind.index("d.") - 1])
    transposed = "transpose" in kind
    groups = draw(st.sampled_from([1, 1, 1, 2, 4]))
    narrow = groups * draw(st.sampled_from([1, 2, 3]) if groups > 1 else st.sampled_from([8, 4, 3]))
    wide = groups * draw(st.sampled_from([1, 2]) if groups > 1 else st.sampled_from([8, 4, 5]))
    batch = draw(st.sampled_from([(B,), (B,), (4 * B,), ()]))
    stride = 1 if kind.endswith("padding") else draw(st.sampled_from([1, 2]))
    stored = draw(st.integers(0, 3)) > 0
    filter_ = (narrow, wide // groups) if transposed else (wide, narrow // groups)
    operands = {
        "a": Operand((*batch, narrow, *(_SIDE,) * space)),
        "b": Operand((*filter_, *(2,) * space), parameter=stored),
    }
    bias = None
    if draw(st.booleans()):
        operands["c"], bias = Operand((wide,), parameter=stored), c
    side = (_SIDE - 1) * stride + 2 if transposed else (_SIDE - 2) // stride + 1
    many = (stride,) * space
    if kind.endswith("padding"):
        args, side = (a, b, bias, many, "same", (1,) * space, groups), _SIDE
    elif transposed:
        args = (a, b, bias, many, (0,) * space, (0,) * space, groups, (1,) * space)
    else:
        args = (a, b, bias, many, (0,) * space, (1,) * space, groups)
    return Case(kind, operands, args, (_spec(*batch, wide, *(side,) * space),))


def _images(draw, space):
    """Images with a batch and channels, in that order; channels alone; a sequence in front."""
    front = draw(st.sampled_from([(B, 8), (B, 8), (B, 3), (4,), (B * S, 4)]))
    return front, Operand((*front, *(_SIDE,) * space), gradient=draw(st.integers(0, 4)) > 0)


@st.composite
def pool(draw, kind):
    space = int(kind.split("pool")[1][0])
    front, operand = _images(draw, space)
    if "adaptive" in kind:
        side, args = 2, (a, (2,) * space)
    else:
        side, args = _SIDE // 2, (a, (2,) * space, (2,) * space)
    return Case(kind, {"a": operand}, args, (_spec(*front, *(side,) * space),))


@st.composite
def upsample(draw, kind):
    space = int(kind.split("d.vec")[0][-1])
    front = draw(st.sampled_from([(B, 8), (B, 3), (4 * B, 4)]))
    operand = Operand((*front, *(_SIDE,) * space))
    corners = () if "nearest" in kind else (False,)
    if draw(st.booleans()):
        args = (a, (2 * _SIDE,) * space, *corners, None)
    else:
        args = (a, None, *corners, (2.0,) * space)
    return Case(kind, {"a": operand}, args, (_spec(*front, *(2 * _SIDE,) * space),))


@st.composite
def batch_norm(draw):
    """Statistics of the batch or running ones; channels that the axis divides or not."""
    channels = draw(st.sampled_from([8, 4, 3]))
    shape = draw(st.sampled_from([(B, channels, 4), (B, channels, S, 2), (4 * B, channels)]))
    training = draw(st.booleans())
    stored = draw(st.booleans())
    operands = {"a": Operand(shape)}
    args = [a, None, None, None, None]
    if draw(st.booleans()):
        for place, name in ((1, "b"), (2, "c")):
            operands[name] = Operand((channels,), parameter=stored)
            args[place] = Ref(name)
    if not training or draw(st.booleans()):
        for place, name in ((3, "d"), (4, "e")):
            operands[name] = Operand((channels,), "positive", gradient=False)
            args[place] = Ref(name)
    more = (training, 0.1, 1e-5, False)
    return Case("aten.batch_norm.default", operands, (*args, *more), (_spec(*shape),))


@st.composite
def group_norm(draw):
    channels, groups = draw(st.sampled_from([(8, 4), (8, 1), (6, 3)]))
    shape = draw(st.sampled_from([(B, channels, 4), (B, channels, S, 2), (4 * B, channels)]))
    operands = {"a": Operand(shape)}
    if draw(st.booleans()):
        stored = draw(st.booleans())
        operands |= {name: Operand((channels,), parameter=stored) for name in ("b", "c")}
    affine = tuple(map(Ref, list(operands)[1:]))
    args = (a, groups, *affine)
    return Case("aten.group_norm.default", operands, args, (_spec(*shape),))


CASES = {
    **{
        kind: convolution(kind)
        for kind in (
            *(
                f"aten.conv{n}d.{overload}"
                for n in (1, 2, 3)
                for overload in ("default", "padding")
            ),
            "aten.conv_transpose1d.default",
            "aten.conv_transpose2d.input",
            "aten.conv_transpose3d.input",
        )
    },
    **{
        kind: pool(kind)
        for name in ("max_pool", "avg_pool", "adaptive_avg_pool")
        for n in (1, 2, 3)
        for kind in (f"aten.{name}{n}d.default",)
    },
    **{
        kind: upsample(kind)
        for kind in (
            *(f"aten.upsample_nearest{n}d.vec" for n in (1, 2, 3)),
            "aten.upsample_linear1d.vec",
            "aten.upsample_bilinear2d.vec",
            "aten.upsample_bicubic2d.vec",
            "aten.upsample_trilinear3d.vec",
        )
    },
    "aten.batch_norm.default": batch_norm(),
    "aten.group_norm.default": group_norm(),
}
"""Kind -> strategy of its cases."""
