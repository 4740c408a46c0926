"""The job: what to train, on what, how, and where the results go; read from a TOML file.

Frozen values; `job_schema` states the file's keys and checks them. A job says nothing of how
the work is split: that is the plan's.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.training import TrainingSpec

OPTIMIZERS: Final = ("adamw", "sgd")
"""What a job can train with; a loop by hand takes any elementwise optimizer of torch."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model comes from."""

    spec: str
    """`hf:PATH.json` (a transformers config) or `module:function` that returns a torch module."""
    init: str = "random"
    """`random` (seeded) or `hf:DIR` (safetensors)."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where documents come from and how they become tokens."""

    corpus: str
    """`stdlib`, a file or glob of .txt, .jsonl or .npy files, or `module:function`."""
    tokenizer: str = "bytes"
    """`bytes`, or `hf:DIR`."""
    max_length: int = 8192
    """Longer documents are split at it."""
    field: str = "text"
    """Key of the text in .jsonl files."""
    seed: int = 0
    """Of the order of the documents."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate over steps: linear warm-up, then constant, linear or cosine to `floor`."""

    peak: float = 3e-4
    warmup_steps: int = 0
    shape: str = "constant"
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in ("constant", "linear", "cosine"):
            raise InvalidValueError(
                f"schedule shape {self.shape!r}: use constant, linear or cosine"
            )
        positive = isfinite(self.peak) and self.peak > 0
        if not positive or not 0 <= self.floor <= self.peak or self.warmup_steps < 0:
            raise InvalidValueError(
                f"schedule with peak {self.peak}, floor {self.floor}, {self.warmup_steps} warm-up "
                "steps: need 0 <= floor <= peak, peak > 0 and finite, warmup_steps >= 0"
            )

    def rate(self, step: int, steps: int) -> float:
        """The rate of step `step` (from 0) of `steps`."""
        from math import cos, pi

        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return self.peak
        share = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        falling = 1 - share if self.shape == "linear" else 0.5 * (1 + cos(pi * share))
        return self.floor + (self.peak - self.floor) * falling


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW or SGD with the usual numbers."""

    name: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise InvalidValueError(
                f"optimizer {self.name!r}: this version runs {' and '.join(OPTIMIZERS)}; set "
                "training.optimizer to one of them"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidValueError(
                f"betas {list(self.betas)}: each is a share of the past, 0 <= beta < 1; set "
                "training.betas so"
            )
        sizes = (self.epsilon, self.weight_decay)
        if not all(isfinite(size) and size >= 0 for size in sizes):
            raise InvalidValueError(
                f"epsilon {self.epsilon}, weight_decay {self.weight_decay}: give finite numbers, "
                "0 or more"
            )


@dataclass(frozen=True, slots=True)
class Output:
    """What the run writes."""

    folder: Path
    """Metrics (metrics.jsonl) and checkpoints (step-N) go here."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves at the end only."""
    eval_every: int = 0
    """Steps between evaluations; 0 never."""
    eval_documents: int = 64
    """The last documents of the corpus, which are not trained on where `eval_every` is set."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training run."""

    model: ModelSource
    data: DataSource
    training: TrainingSpec
    optimizer: Optimizer
    schedule: Schedule
    output: Output
    steps: int
    tokens_per_step: int
    device: str = "cpu"
    memory_limit_bytes_per_rank: int | None = None
    log_every: int = 1
    path: Path = Path("job.toml")
    """The file that the job was read from; relative paths in it start at the working folder."""
    check_profile: bool = True
    """Measure a few points of the plan's hardware profile again before the first step."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tokens_per_step < 1:
            raise InvalidValueError(
                f"{self.steps} steps of {self.tokens_per_step} tokens: give 1 or more of each"
            )
        if self.schedule.warmup_steps > self.steps:
            raise InvalidValueError(
                f"{self.schedule.warmup_steps} warm-up steps of {self.steps} in all: the learning "
                "rate would never reach its peak; set training.warmup_steps to at most "
                "training.steps"
            )
        if self.device not in ("cpu", "cuda"):
            raise InvalidValueError(f"device {self.device!r}: use cpu or cuda")
