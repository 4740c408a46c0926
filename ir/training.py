"""TrainingSpec: the recipe as far as memory, traffic and numerics depend on it."""

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from shardwise.ir.dtype import check_dtype
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, check_name, made, quote_string, shown


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """What a plan has to know of an optimizer; rates and betas are none of its business."""

    state_tensors: int
    """Tensors of the parameter's shape and dtype that it keeps per parameter, at most."""
    elementwise: bool
    """Whether an element's update depends on that element alone, so that shards step alone."""


OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = MappingProxyType(
    {
        "adadelta": OptimizerKind(2, True),
        "adafactor": OptimizerKind(1, False),
        "adagrad": OptimizerKind(1, True),
        "adam": OptimizerKind(2, True),
        "adamax": OptimizerKind(2, True),
        "adamw": OptimizerKind(2, True),
        "muon": OptimizerKind(1, False),
        "nadam": OptimizerKind(2, True),
        "radam": OptimizerKind(2, True),
        "rmsprop": OptimizerKind(1, True),
        "rprop": OptimizerKind(2, True),
        "sgd": OptimizerKind(0, True),
        "sgd_momentum": OptimizerKind(1, True),
    }
)
"""Optimizers of `torch.optim` with their default options, `sgd_momentum` with momentum.

State counted on torch 2.13 (tests/ir/test_training.py counts it again). Adafactor keeps one
tensor of the parameter's shape for vectors only, two small ones for matrices.
"""

_DTYPES: Final = ("master", "compute", "reduce", "accumulate")
_FLOATING: Final = ("float64", "float32", "bfloat16", "float16")
_GLOB: Final = re.compile(r"[A-Za-z0-9_.#*?!\[\]-]+")
_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?")
_FORM: Final = (
    "'adamw master=float32 compute=bfloat16 reduce=float32 accumulate=float32 trainable=* "
    "clip_norm=1.0'"
)


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """Optimizer, dtypes, what is trained, and clipping.

    Raises InvalidValueError for an unknown optimizer or dtype, an empty list of globs, and a
    clip_norm that is not positive and finite. Text: `adamw master=float32 compute=bfloat16
    reduce=float32 accumulate=float32 trainable=*,layers.*.bias clip_norm=1.0` (clip_norm left
    out for None).
    """

    optimizer: str = "adamw"
    """A name of OPTIMIZERS; its state is kept in `master_dtype`."""
    master_dtype: str = "float32"
    """Of the weights that the optimizer steps."""
    compute_dtype: str = "float32"
    """Of forward and backward: the dtype that the model is traced in."""
    reduce_dtype: str = "float32"
    """Of gradients while they are reduced over ranks."""
    accumulate_dtype: str = "float32"
    """Of the sum of gradients over the micro-batches of a step."""
    trainable: tuple[str, ...] = ("*",)
    """Globs (`fnmatch`, case counts) of the names of parameters that train; at least one."""
    clip_norm: float | None = None
    """Largest global 2-norm of the gradients; None does not clip."""

    def __post_init__(self) -> None:
        if type(self.optimizer) is not str or self.optimizer not in OPTIMIZERS:
            raise InvalidValueError(
                f"optimizer {shown(self.optimizer)} is not known: use one of "
                f"{', '.join(OPTIMIZERS)}"
            )
        for what in _DTYPES:
            dtype = getattr(self, f"{what}_dtype")
            check_dtype(dtype)
            if dtype not in _FLOATING:
                raise InvalidValueError(
                    f"{what}_dtype {shown(dtype)}: training needs one of {', '.join(_FLOATING)}"
                )
        if type(self.trainable) is not tuple or not self.trainable:
            raise InvalidValueError(
                f"trainable {shown(self.trainable)}: give a tuple of globs, ('*',) for all "
                "parameters"
            )
        for glob in self.trainable:
            check_name(glob, "a glob of trainable")
        self._check_clip()

    def _check_clip(self) -> None:
        if self.clip_norm is None:
            return
        if type(self.clip_norm) is int and 0 < self.clip_norm <= sys.float_info.max:
            object.__setattr__(self, "clip_norm", float(self.clip_norm))
        if (
            type(self.clip_norm) is not float
            or not math.isfinite(self.clip_norm)
            or self.clip_norm <= 0
        ):
            raise InvalidValueError(
                f"clip_norm {shown(self.clip_norm)}: give a positive finite float, or None"
            )

    @property
    def optimizer_kind(self) -> OptimizerKind:
        """What OPTIMIZERS says of the optimizer."""
        return OPTIMIZERS[self.optimizer]

    def trains(self, name: str) -> bool:
        """Whether the parameter of that name is trained."""
        return any(fnmatchcase(name, glob) for glob in self.trainable)

    def __str__(self) -> str:
        parts = [self.optimizer]
        parts += [f"{what}={getattr(self, f'{what}_dtype')}" for what in _DTYPES]
        globs = (glob if _GLOB.fullmatch(glob) else quote_string(glob) for glob in self.trainable)
        parts.append(f"trainable={','.join(globs)}")
        if self.clip_norm is not None:
            parts.append(f"clip_norm={self.clip_norm!r}")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> "TrainingSpec":
        """The spec that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _FORM)
        optimizer = scanner.need(_WORD, "an optimizer")
        dtypes = []
        for what in _DTYPES:
            scanner.expect(f" {what}=")
            dtypes.append(scanner.need(_WORD, "a dtype"))
        scanner.expect(" trainable=")
        globs = [scanner.match(_GLOB) or scanner.string()]
        while scanner.take(","):
            globs.append(scanner.match(_GLOB) or scanner.string())
        clip = float(scanner.need(_NUMBER, "a number")) if scanner.take(" clip_norm=") else None
        scanner.end()
        return made(text, cls, optimizer, *dtypes, trainable=tuple(globs), clip_norm=clip)
