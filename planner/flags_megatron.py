"""Flags of Megatron-LM (and torchrun's in front of them) -> LauncherPlan.

A flag is read, or known to change neither time nor memory, or noted as not priced, or refused. An
unknown one is an error: it might matter. Names as in Megatron-LM's megatron/training/arguments.py;
`_` and `-` are the same.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.flag_words import integer, names, word
from shardwise.planner.launcher_plan import (
    FLOAT8,
    LauncherPlan,
    check_sizes,
    chunks_of,
    data_degree,
    micro_batch_count,
)
from shardwise.planner.uniform_plan import UniformPlan

Flags = Mapping[str, tuple[str, ...]]

_READ: Final = names(
    """
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
    expert-model-parallel-size num-layers hidden-size ffn-hidden-size num-attention-heads
    group-query-attention num-query-groups seq-length micro-batch-size global-batch-size
    num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank sequence-parallel
    recompute-granularity recompute-method recompute-num-layers recompute-modules
    recompute-activations use-distributed-optimizer num-distributed-optimizer-instances
    use-torch-fsdp2 use-megatron-fsdp use-custom-fsdp data-parallel-sharding-strategy
    overlap-grad-reduce tp-comm-overlap swiglu untie-embeddings-and-output-weights bf16 fp16
    fp8-format fp8-hybrid fp8-e4m3 nproc-per-node nnodes
    """
)
_WITHOUT_EFFECT: Final = (
    "adam-", "apply-", "async-", "attention-backend", "attention-dropout", "attention-softmax",
    "auto-detect-ckpt", "check-for-nan", "ckpt-", "clip-grad", "config-", "data-args",
    "data-cache", "data-path", "dataloader", "dataset", "decoupled", "deterministic", "dist-ckpt",
    "distributed-backend", "distributed-timeout", "end-weight-decay", "eod-mask", "eval-", "exit-",
    "finetune", "fp8-amax", "fp8-margin", "fp8-recipe", "fp8-interval", "global-rank",
    "hidden-dropout", "hysteresis", "init-method", "initial-loss-scale", "kv-channels", "load",
    "log-", "loss-scale", "lr", "make-vocab-size", "manual-gc", "master-", "max-position", "merge",
    "min-l", "mmap", "mock-data", "no-create", "no-load", "no-mmap", "no-save", "node-rank",
    "norm-epsilon", "normalization", "num-dataset", "num-workers", "optimizer", "override-opt",
    "per-split", "position-embedding", "profile", "rdzv", "reset-", "rotary-", "save", "seed",
    "sgd-", "split", "start-weight", "step", "straggler", "tensorboard", "test-data", "timing",
    "tiktoken", "tokenizer", "train-", "transformer-impl", "use-checkpoint", "use-flash-attn",
    "use-legacy", "use-mcore", "use-rotary", "valid-data", "vocab", "wandb", "weight-decay",
    "max-restarts", "local-ranks", "log", "tee", "disable-bias-linear", "legacy-tokenizer",
)  # fmt: skip
"""Beginnings of names: data, checkpoints, logs, the optimizer's rates, and what the model's own
config says."""
_NOT_PRICED: Final = names(
    """
    accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 overlap-param-gather
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    overlap-p2p-communication no-overlap-p2p-communication cross-entropy-loss-fusion
    cross-entropy-fusion-impl fp8-param-gather defer-embedding-wgrad-compute
    use-precision-aware-optimizer enable-cuda-graph cuda-graph-impl
    no-gradient-accumulation-fusion no-masked-softmax-fusion no-bias-gelu-fusion
    no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion
    no-async-tensor-model-parallel-allreduce delay-wgrad-compute align-param-gather
    no-align-grad-reduce ddp-bucket-size ddp-num-buckets keep-fp8-weight-transpose-cache
    distribute-saved-activations overlap-param-gather-with-optimizer-step fp8-wgrad no-fp8-wgrad
    use-nccl-ub use-ring-exchange-p2p sequence-parallel-overlap
    """
)
_ZERO: Final[Mapping[str, int]] = {
    "no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3,
}  # fmt: skip


def read_megatron(given: Flags, shape: DecoderShape, world_size: int) -> LauncherPlan:
    """The plan of Megatron-LM's flags for a model on `world_size` ranks.

    Raises InvalidValueError for an unknown flag or one that contradicts another, MismatchError for
    one that contradicts the model or the cluster, UnsupportedError for what is not priced at all.
    """
    return _Reader(given, shape, world_size, _noted(given)).plan()


def _noted(given: Flags) -> list[str]:
    """Notes for flags that are known and not priced; raises for those that nobody knows."""
    notes = []
    for name in given:
        if name in _READ or name.startswith(_WITHOUT_EFFECT):
            continue
        if name in _NOT_PRICED:
            notes.append(f"--{name} is not priced")
            continue
        if name.startswith(("num-experts", "moe-", "expert-")):
            raise UnsupportedError(f"--{name}: experts are not priced; leave it out")
        near = difflib.get_close_matches(name, [*_READ, *_NOT_PRICED], n=1)
        hint = f"; did you mean --{near[0]}?" if near else "; leave it out if it changes no price"
        raise InvalidValueError(f"--{name} is not a flag of Megatron-LM that is known here{hint}")
    return notes


@dataclass
class _Reader:
    """Flags, and the notes made while they are read."""

    given: Flags
    shape: DecoderShape
    world_size: int
    notes: list[str]

    def plan(self) -> LauncherPlan:
        tensor = self._integer("tensor-model-parallel-size", 1)
        pipeline = self._integer("pipeline-model-parallel-size", 1)
        context = self._integer("context-parallel-size", 1)
        if self._integer("expert-model-parallel-size", 1) != 1:
            raise UnsupportedError("--expert-model-parallel-size: experts are not priced")
        self._check_model()
        self._check_world()
        data = data_degree(self.world_size, None, tp=tensor, pp=pipeline, cp=context)
        if not self._has("micro-batch-size"):
            raise InvalidValueError("--micro-batch-size is missing, Megatron-LM needs it; add it")
        micro = self._integer("micro-batch-size", 1)
        documents = self._integer("global-batch-size", 0)
        count = 1
        if documents:
            count = micro_batch_count("--global-batch-size", documents, data, micro)
        chunks = self._chunks(pipeline)
        zero, shard = self._zero(data * context)
        length = self._integer("seq-length", 0)
        made = UniformPlan(
            tensor,
            pipeline,
            data,
            context,
            micro,
            count,
            length or 1,
            ScheduleKind.INTERLEAVED if chunks > 1 else ScheduleKind.ONE_F_ONE_B,
            chunks,
            zero,
            shard,
            sequence_parallel=self._sequence_parallel(tensor),
            recompute=self._recompute(),
            overlap_gradients=self._has("overlap-grad-reduce") or zero > 2,
            overlap_tensor=tensor > 1 and self._has("tp-comm-overlap"),
        )
        return LauncherPlan(
            made, "megatron", length or None, bool(documents), self._dtype(), self._float8(),
            tuple(self.notes),
        )  # fmt: skip

    def _has(self, name: str) -> bool:
        return name in self.given

    def _integer(self, name: str, default: int) -> int:
        if not self._has(name):
            return default
        value = integer(name, self.given[name])
        if value < 1:
            raise InvalidValueError(f"--{name} is {value}; give 1 or more")
        return value

    def _word(self, name: str) -> str:
        return word(name, self.given[name]) if self._has(name) else ""

    def _check_model(self) -> None:
        """Sizes that flags state are the model's."""
        fields = {
            "num-layers": "layers", "hidden-size": "hidden", "ffn-hidden-size": "ffn",
            "num-attention-heads": "heads",
        }  # fmt: skip
        stated: dict[str, tuple[str, int | bool]] = {
            field: (f"--{name}", self._integer(name, 0))
            for name, field in fields.items()
            if self._has(name)
        }
        if self._has("group-query-attention"):
            stated["kv_heads"] = ("--num-query-groups", self._integer("num-query-groups", 1))
        elif self._has("num-query-groups"):
            raise InvalidValueError(
                "--num-query-groups without --group-query-attention has no effect in Megatron-LM; "
                "add the one or leave out the other"
            )
        elif self._has("num-attention-heads"):
            heads = self._integer("num-attention-heads", 0)
            stated["kv_heads"] = ("--num-attention-heads without --group-query-attention", heads)
        if self._has("swiglu"):
            stated["gated"] = ("--swiglu", True)
        if self._has("untie-embeddings-and-output-weights"):
            stated["tied"] = ("--untie-embeddings-and-output-weights", False)
        check_sizes(self.shape, stated)

    def _check_world(self) -> None:
        """The ranks that torchrun starts are the cluster's."""
        if self._has("nproc-per-node") and self._has("nnodes"):
            ranks = self._integer("nproc-per-node", 1) * self._integer("nnodes", 1)
            if ranks != self.world_size:
                raise MismatchError(
                    f"--nproc-per-node x --nnodes start {ranks} ranks, the cluster has "
                    f"{self.world_size}; give the cluster of this run"
                )

    def _chunks(self, pipeline: int) -> int:
        by_layers = "num-layers-per-virtual-pipeline-stage"
        by_count = "num-virtual-stages-per-pipeline-rank"
        if self._has(by_layers) and self._has(by_count):
            raise InvalidValueError(f"--{by_layers} and --{by_count} are both given; leave one")
        chunks = self._integer(by_count, 1)
        if self._has(by_layers):
            layers = self._integer(by_layers, 1)
            chunks = chunks_of(f"--{by_layers}", self.shape.layers, pipeline, layers)
        if chunks > 1 and pipeline == 1:
            raise InvalidValueError(
                "virtual pipeline stages with --pipeline-model-parallel-size 1: there is no "
                "pipeline; leave them out"
            )
        return chunks

    def _zero(self, replicas: int) -> tuple[int, int]:
        """Stage of ZeRO, and ranks of a shard group (0: all)."""
        strategy = self._word("data-parallel-sharding-strategy")
        if strategy and strategy not in _ZERO:
            raise InvalidValueError(
                f"--data-parallel-sharding-strategy {strategy}: it is one of {', '.join(_ZERO)}"
            )
        if self._has("use-torch-fsdp2"):
            zero = 3
        elif self._has("use-megatron-fsdp") or self._has("use-custom-fsdp"):
            zero = _ZERO[strategy or "no_shard"]
        elif strategy:
            raise InvalidValueError(
                "--data-parallel-sharding-strategy without --use-megatron-fsdp has no effect; add "
                "the one or leave out the other"
            )
        else:
            zero = int(self._has("use-distributed-optimizer"))
        instances = self._integer("num-distributed-optimizer-instances", 1)
        if replicas % instances:
            raise InvalidValueError(
                f"--num-distributed-optimizer-instances {instances} does not divide {replicas} "
                "replicas; correct it"
            )
        return zero, replicas // instances if instances > 1 and zero else 0

    def _sequence_parallel(self, tensor: int) -> bool:
        asked = self._has("sequence-parallel")
        if asked and tensor == 1:
            self.notes.append("--sequence-parallel has no effect with one tensor-parallel rank")
        return asked and tensor > 1

    def _recompute(self) -> Recompute:
        granularity = self._word("recompute-granularity")
        if self._has("recompute-activations"):
            if granularity == "full":
                raise InvalidValueError(
                    "--recompute-activations is --recompute-granularity selective, but it is full; "
                    "leave one"
                )
            granularity = "selective"
        readers: Mapping[str, Callable[[], Recompute]] = {
            "": lambda: Recompute.NONE, "full": self._full, "selective": self._selective,
        }  # fmt: skip
        if granularity not in readers:
            raise InvalidValueError(
                f"--recompute-granularity {granularity}: it is full or selective"
            )
        return readers[granularity]()

    def _full(self) -> Recompute:
        method, layers = self._word("recompute-method"), self._integer("recompute-num-layers", 1)
        if method == "block":
            raise UnsupportedError(
                "--recompute-method block recomputes some layers of a stage, which a uniform plan "
                "can't say; use uniform"
            )
        if layers > 1:
            self.notes.append(f"--recompute-num-layers {layers} priced as 1")
        return Recompute.LAYER

    def _selective(self) -> Recompute:
        modules = self.given.get("recompute-modules", ("core_attn",))
        if modules != ("core_attn",):
            raise UnsupportedError(
                f"--recompute-modules {' '.join(modules)}: only core_attn is priced"
            )
        return Recompute.ATTENTION

    def _dtype(self) -> str | None:
        if self._has("bf16") and self._has("fp16"):
            raise InvalidValueError("--bf16 and --fp16 are both given; leave one")
        return "bfloat16" if self._has("bf16") else "float16" if self._has("fp16") else None

    def _float8(self) -> str | None:
        names = ("fp8-format", "fp8-hybrid", "fp8-e4m3")
        return FLOAT8 if any(map(self._has, names)) else None
