"""A user's own plan from three forms of flags, and its prices beside a plan of ours."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import InvalidValueError, MismatchError, ParseError, ShardwiseError
from shardwise.ir.errors import UnsupportedError as Unsupported
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.flag_words import flags
from shardwise.planner.flags import read_flags, read_flags_file
from shardwise.planner.launcher_plan import not_cut
from shardwise.planner.uniform_plan import UniformPlan
from tests.planner.test_uniform_plan import plans

SHAPE = DecoderShape(
    32, 4096, 32, 8, 14336, True, 128256, rotary=True, rms_norm=True, bias=False
)  # fmt: skip
SCRIPT = """#!/bin/bash
# Don't run this: it's read. --tensor-model-parallel-size 99
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
PP=${PP:-2}
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 8 --master_addr localhost"
GPT_MODEL_ARGS=(
    --num-layers 32   # all of them
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --swiglu --untie-embeddings-and-output-weights
)
PARALLEL=(--tensor-model-parallel-size "$TP" --pipeline-model-parallel-size ${PP})
PARALLEL+=(--sequence-parallel --use-distributed-optimizer)
UNUSED="--context-parallel-size 16"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    "${GPT_MODEL_ARGS[@]}" \\
    ${PARALLEL[@]} \\
    --micro-batch-size=1 --global-batch-size 256 --lr 3.0e-4 --bf16 \\
    --num-layers-per-virtual-pipeline-stage 4 --recompute-granularity selective \\
    --overlap-grad-reduce --data-path $DATA --adam-beta2 0.95
"""


def megatron(text, world=64, shape=SHAPE):
    return read_flags(f"--micro-batch-size 1 {text}", shape, world)


def titan(text, world=64, shape=SHAPE):
    more = "--training.local_batch_size 2 --activation_checkpoint.mode none"
    return read_flags(f"{more} {text}", shape, world)


@given(plans())
def test_the_text_of_a_uniform_plan_is_itself(made):
    read = read_flags(str(made), SHAPE, made.world_size)
    assert read.plan == made and read.form == "uniform"


def test_uniform_text_leaves_the_data_degree_to_the_world():
    read = read_flags("tp=8 pp=4", SHAPE, 64)
    assert (read.plan.data, read.sequence_length, read.counts_micro_batches) == (2, None, False)
    read = read_flags("tp=8 pp=4 dp=2 micro_batches=8 length=4096", SHAPE, 64)
    assert (read.sequence_length, read.counts_micro_batches) == (4096, True)


def test_shards_are_of_the_data_ranks_that_the_world_leaves():
    made = read_flags("tp=2 zero=3 shard=8", SHAPE, 64).plan
    assert (made.data, made.shard) == (32, 8)
    for text in ("tp=2 zero=3 shard=7", "tp=2 zero=3 shard=0x", "tp=2 dp=32 zero=3 shard=64"):
        with pytest.raises(ShardwiseError):
            read_flags(text, SHAPE, 64)


@pytest.mark.parametrize(
    ("tensor", "named"), [(8, ""), (64, "32 heads"), (16, "8 heads of keys"), (3, "32 heads")]
)
def test_parts_that_the_tensor_degree_does_not_divide_are_named(tensor, named):
    found = not_cut(SHAPE, UniformPlan(tensor=tensor))
    assert named in found and bool(named) == bool(found)
    assert "feed-forward" in not_cut(replace(SHAPE, ffn=14335), UniformPlan(tensor=2))


def test_a_script_of_megatron(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    read = read_flags_file(path, SHAPE, 64)
    assert str(read.plan) == (
        "tp=4 pp=2 dp=8 micro_batches=32 length=8192 schedule=interleaved_1f1b vpp=4 zero=1 sp "
        "recompute=attention overlap_gradients"
    )
    assert (read.form, read.sequence_length, read.compute_dtype) == ("megatron", 8192, "bfloat16")
    assert read.counts_micro_batches and read.linear_dtype is None and read.notes == ()


TOML = """
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[optimizer]
name = "AdamW"
[training]
local_batch_size = 8
global_batch_size = 256
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
enable_async_tensor_parallel = true
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 4
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def test_a_file_of_torchtitan(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(TOML)
    read = read_flags_file(path, SHAPE, 64)
    assert str(read.plan) == (
        "tp=4 pp=2 dp=8 mbs=2 micro_batches=16 length=8192 schedule=interleaved_1f1b vpp=4 zero=2 "
        "shard=4 sp recompute=region overlap_gradients overlap_tensor alternate"
    )
    assert read.form == "torchtitan" and read.linear_dtype == "float8_e4m3fn"
    assert any("drains" in note for note in read.notes)


def test_flags_of_torchtitan_say_the_same_as_its_file(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text(TOML)
    text = (
        "torchrun --nproc_per_node=8 -m torchtitan.train --training.local_batch_size 8 "
        "--training.global_batch_size=256 --training.seq_len 8192 --training.steps 1000 "
        "--model.converters float8 --parallelism.data_parallel_replicate_degree 2 "
        "--parallelism.tensor-parallel-degree 4 --parallelism.enable_async_tensor_parallel "
        "--parallelism.pipeline_parallel_degree 2 "
        "--parallelism.pipeline_parallel_schedule Interleaved1F1B "
        "--parallelism.pipeline_parallel_layers_per_stage 4 "
        "--parallelism.pipeline_parallel_microbatch_size 2 --activation_checkpoint.mode selective "
        "--activation_checkpoint.selective_ac_option op"
    )
    assert read_flags(text, SHAPE, 64) == read_flags_file(path, SHAPE, 64)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("", "zero", 0), ("--use-distributed-optimizer", "zero", 1),
        ("--use-torch-fsdp2", "zero", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero", 3),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", "shard", 16),
        ("--context-parallel-size 4", "context", 4), ("--context-parallel-size 4", "data", 16),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         "recompute", Recompute.LAYER),
        ("--recompute-activations", "recompute", Recompute.ATTENTION),
        ("--recompute-granularity selective --recompute-modules core_attn", "recompute",
         Recompute.ATTENTION),
        ("--tensor-model-parallel-size 2", "sequence_parallel", False),
        ("--tensor_model_parallel_size 2 --sequence_parallel", "sequence_parallel", True),
        ("--global-batch-size 128", "micro_batches", 2),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", "chunks", 2),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 8", "schedule",
         ScheduleKind.ONE_F_ONE_B),
        ("--overlap-grad-reduce", "overlap_gradients", True),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "overlap_tensor", True),
    ],
)  # fmt: skip
def test_flags_of_megatron(text, field, value):
    assert getattr(megatron(text).plan, field) == value


@pytest.mark.parametrize("text", ["--fp8-format hybrid", "--fp8-hybrid", "--fp8-e4m3"])
def test_float8_of_megatron(text):
    assert megatron(text).linear_dtype == "float8_e4m3fn"


def test_flags_that_are_not_priced_are_notes():
    read = megatron("--overlap-param-gather --sequence-parallel --lr 1e-4 --log-interval 10 --fp16")
    assert len(read.notes) == 2 and "overlap-param-gather" in read.notes[0]
    assert read.compute_dtype == "float16" and not read.plan.sequence_parallel


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        ("--tensor-model-paralel-size 2", InvalidValueError,
         "did you mean --tensor-model-parallel-size"),
        ("--frobnicate 2", InvalidValueError, "--frobnicate"),
        ("--tensor-model-parallel-size 3", MismatchError, "tp=3"),
        ("--tensor-model-parallel-size 0", InvalidValueError, "tensor-model-parallel-size is 0"),
        ("--tensor-model-parallel-size", InvalidValueError, "tensor-model-parallel-size"),
        ("--tensor-model-parallel-size $TP", InvalidValueError, r"\$TP"),
        ("--tensor-model-parallel-size $(nproc)", InvalidValueError, "whole number"),
        ("--seq-length 8k", InvalidValueError, "seq-length"),
        ("--bf16 --fp16", InvalidValueError, "--bf16 and --fp16"),
        ("--seq-length 4096 --seq-length 8192", InvalidValueError, "seq-length is given as"),
        ("--num-layers 16", MismatchError, "--num-layers says layers 16"),
        ("--hidden-size 1024", MismatchError, "hidden"),
        ("--num-attention-heads 32", MismatchError, "group-query-attention"),
        ("--group-query-attention --num-query-groups 4", MismatchError, "num-query-groups"),
        ("--num-query-groups 8", InvalidValueError, "group-query-attention"),
        ("--global-batch-size 100", InvalidValueError, "global-batch-size 100"),
        ("--nproc-per-node 4 --nnodes 4", MismatchError, "16 ranks"),
        ("--num-layers-per-virtual-pipeline-stage 4", InvalidValueError, "no pipeline"),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5",
         InvalidValueError, "virtual-pipeline-stage 5"),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
         "--num-virtual-stages-per-pipeline-rank 2", InvalidValueError, "both given"),
        ("--recompute-granularity all", InvalidValueError, "full or selective"),
        ("--recompute-granularity full --recompute-activations", InvalidValueError, "leave one"),
        ("--recompute-granularity full --recompute-method block", Unsupported, "block"),
        ("--recompute-granularity selective --recompute-modules mlp", Unsupported, "core_attn"),
        ("--data-parallel-sharding-strategy optim", InvalidValueError, "use-megatron-fsdp"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy some", InvalidValueError, "some"),
        ("--num-experts 8", Unsupported, "num-experts"),
        ("--expert-model-parallel-size 8", Unsupported, "experts"),
        ("--num-distributed-optimizer-instances 7", InvalidValueError, "does not divide"),
    ],
)  # fmt: skip
def test_wrong_flags_of_megatron_are_named(text, kind, names):
    with pytest.raises(kind, match=names) as error:
        megatron(text)
    assert "\n" not in str(error.value)


def test_megatron_needs_a_micro_batch():
    with pytest.raises(InvalidValueError, match="--micro-batch-size is missing"):
        read_flags("--tensor-model-parallel-size 2", SHAPE, 64)


def test_flags_of_other_models():
    plain = replace(SHAPE, gated=False, tied=True, kv_heads=32)
    assert megatron("--num-attention-heads 32", shape=plain)
    for text in ("--swiglu", "--untie-embeddings-and-output-weights"):
        with pytest.raises(MismatchError, match=text):
            megatron(text, shape=plain)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("", "zero", 3), ("", "data", 64), ("", "micro_batch", 2), ("", "micro_batches", 1),
        ("--parallelism.tensor_parallel_degree 8", "sequence_parallel", True),
        ("--parallelism.fsdp_reshard_after_forward never", "zero", 2),
        ("--parallelism.pipeline_parallel_degree 2", "zero", 2),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.fsdp_reshard_after_forward always",
         "zero", 3),
        ("--parallelism.pipeline_parallel_degree 2", "micro_batches", 2),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule GPipe",
         "schedule", ScheduleKind.GPIPE),
        ("--parallelism.pipeline_parallel_degree 2 "
         "--parallelism.pipeline_parallel_schedule ZBVZeroBubble", "chunks", 2),
        ("--parallelism.data_parallel_replicate_degree 64 "
         "--parallelism.data_parallel_shard_degree 1", "zero", 0),
        ("--parallelism.data_parallel_replicate_degree 8", "shard", 8),
        ("--parallelism.context_parallel_degree 4", "data", 16),
        ("--parallelism.context_parallel_degree 4 --parallelism.data_parallel_replicate_degree 2",
         "shard", 32),
        ("--training.global_batch_size 512", "micro_batches", 4),
    ],
)  # fmt: skip
def test_flags_of_torchtitan(text, field, value):
    assert getattr(titan(text).plan, field) == value


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        ("--parallelism.tensor_paralel_degree 2", InvalidValueError,
         "did you mean parallelism.tensor_parallel_degree"),
        ("--parallelism.tensor_parallel_degree 3", MismatchError, "tp=3"),
        ("--parallelism.data_parallel_shard_degree 3", MismatchError, "dp=3"),
        ("--parallelism.tensor_parallel_degree two", InvalidValueError, "tensor_parallel_degree"),
        ("--parallelism.pipeline_parallel_degree 2 "
         "--parallelism.pipeline_parallel_schedule DualPipeV", Unsupported, "dualpipev"),
        ("--parallelism.expert_parallel_degree 2", Unsupported, "experts"),
        ("--parallelism.fsdp_reshard_after_forward often", InvalidValueError, "often"),
        ("--training.global_batch_size 100", InvalidValueError, "global_batch_size 100"),
        ("--training.batch_size 100", InvalidValueError, "local_batch_size"),
        ("--parallelism.pipeline_parallel_degree 2 "
         "--parallelism.pipeline_parallel_microbatch_size 3", InvalidValueError, "divide"),
        ("--parallelism.pipeline_parallel_degree 2 "
         "--parallelism.pipeline_parallel_layers_per_stage 5", InvalidValueError, "per_stage 5"),
        ("--seq-length 4096", InvalidValueError, "--seq-length is none"),
        ("--job.config_file train.toml", InvalidValueError, "give that TOML file"),
    ],
)  # fmt: skip
def test_wrong_settings_of_torchtitan_are_named(text, kind, names):
    with pytest.raises(kind, match=names) as error:
        titan(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("--training.local_batch_size 2", "state mode"),
        ("--training.local_batch_size 2 --activation_checkpoint.mode selective", "state mode"),
        ("--training.local_batch_size 2 --activation_checkpoint.mode selective "
         "--activation_checkpoint.selective_ac_option 2", "option 2"),
        ("--activation_checkpoint.mode none", "local_batch_size is not stated"),
    ],
)  # fmt: skip
def test_defaults_that_differ_between_versions_are_asked_for(text, names):
    with pytest.raises((InvalidValueError, Unsupported), match=names):
        read_flags(text, SHAPE, 64)


@pytest.mark.parametrize("text", ["", "  ", "tp=2 tp=2", "hello", "tp=2 zero=9", "tp=3"])
def test_text_that_is_no_plan(text):
    with pytest.raises(ShardwiseError) as error:
        read_flags(text, SHAPE, 64)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run --a 1 --b --c=2 --d_e x y", {"a": ("1",), "b": (), "c": ("2",), "d-e": ("x", "y")}),
        ("--a '1 2' # --b 3", {"a": ("1", "2")}),
        ("X=3\nrun --a $X --b ${X} --c ${Y:-4} --d $Z", {
            "a": ("3",), "b": ("3",), "c": ("4",), "d": ("$Z",)}),
        ("A=(--a 1\n--b)\nA+=(--c 2)\nrun ${A[@]}", {"a": ("1",), "b": (), "c": ("2",)}),
        ("A='--a 1'\nB=\"$A --b 2\"\nrun $B", {"a": ("1",), "b": ("2",)}),
        ("UNUSED=(--a 1)\nrun --b -1", {"b": ("-1",)}),
        ("run \\\n  --a \\\n 1", {"a": ("1",)}),
        ("--a 1 --a 1", {"a": ("1",)}),
        ("nothing", {}),
    ],
)  # fmt: skip
def test_words_of_a_script(text, found):
    assert flags(text) == found


@pytest.mark.parametrize("text", ["run --a 'open", "A=(--a 1"])
def test_scripts_that_do_not_end(text):
    with pytest.raises(ParseError):
        flags(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text):
    for given_text in (text, f"--micro-batch-size 1 {text}"):
        try:
            read_flags(given_text, SHAPE, 64)
        except ShardwiseError as error:
            assert str(error) and "\n" not in str(error)


@given(st.text(alphabet="tpd=12 -_microbatchzeros", max_size=40))
def test_text_of_known_letters_too(text):
    try:
        read_flags(text, SHAPE, 64)
    except ShardwiseError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("run.sh", b"--micro-batch-size x", "run.sh: --micro-batch-size"),
        ("run.sh", b"\xff\xfe", "UTF-8"),
        ("run.toml", b"[parallelism", "run.toml: not TOML"),
        ("run.toml", b"[parallelism]\ntensor_parallel_degree = 2.5", "tensor_parallel_degree"),
        ("run.toml", b"[" * 10_000, "not TOML"),
        ("run.sh", b"", "no flags"),
    ],
)
def test_bad_files_name_themselves(name, content, names, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ShardwiseError, match=names) as error:
        read_flags_file(tmp_path / name, SHAPE, 64)
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ShardwiseError, match="No such file"):
        read_flags_file(tmp_path / "none.sh", SHAPE, 64)


@pytest.mark.parametrize(
    ("text", "alternate", "compiled"),
    [
        ("selective --activation_checkpoint.selective_ac_option op", True, False),
        ("selective --activation_checkpoint.selective_ac_option op --training.compile", True, True),
        ("selective --activation_checkpoint.selective_ac_option op --compile.enable", True, True),
        ("full --compile.enable", False, True), ("none", False, False),
    ],
)  # fmt: skip
def test_torchtitans_selective_operators_are_the_plan_of_a_published_run(text, alternate, compiled):
    read = read_flags(
        f"--training.local_batch_size 2 --activation_checkpoint.mode {text}", SHAPE, 64
    )
    assert (read.plan.alternate, read.plan.compiled) == (alternate, compiled)
    assert not any("compile" in note for note in read.notes)
