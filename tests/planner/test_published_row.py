"""Rows of published runs: what blanks and vague words become, and what is refused.

The vague words are those of published tables: BLOOM's and InternEvo's logs, vTrain (MICRO 2024),
NVIDIA's recipes, MosaicML's llm-foundry, torchtitan, zero-bubble (ICLR 2024).
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.decoder import AttentionKernel
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.published_row import VOCABULARY, read_row

FULL = {
    "arch": "dense", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8",
    "ffn": "14336", "glu": "1", "vocab": "128256", "seq_len": "8192", "gpu": "H100-SXM-80GB",
    "n_gpus": "64", "gpus_per_node": "8", "intra_link": "NVLink4/NVSwitch",
    "inter_link": "InfiniBand, 8 x HDR 200 Gb/s per node", "framework": "torchtitan",
    "global_batch": "128", "micro_batch": "2", "grad_accum": "8", "tp": "2", "pp": "4", "dp": "8",
    "cp": "1", "ep": "1", "virtual_stages": "2", "schedule": "interleaved 1F1B",
    "zero_fsdp": "ZeRO-1", "seq_parallel": "yes", "recompute": "full",
    "precision": "bf16", "other_settings": "", "mem_kind": "GiB",
}  # fmt: skip
READ = [name for name in FULL if name not in ("intra_link", "other_settings", "mem_kind")]
SIZES = ("layers", "hidden", "seq_len")
FLAT = {"virtual_stages": "1"}
"""One model part a device, so that its schedule has to say which it is."""
"""Without these nothing says what ran."""


def changed(**cells):
    return read_row({**FULL, **cells})


def test_a_full_row_needs_no_note():
    run = read_row(FULL)
    assert run.notes == ()
    shape, plan = run.shape, run.plan
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (32, 4096, 32, 8)
    assert (shape.ffn, shape.gated, shape.vocabulary) == (14336, True, 128256)
    assert shape.rms_norm and shape.rotary and not shape.bias and not shape.tied
    assert str(plan) == (
        "tp=2 pp=4 dp=8 mbs=2 micro_batches=8 length=8192 schedule=interleaved_1f1b vpp=2 zero=1 "
        "sp recompute=layer overlap_gradients"
    )
    assert run.training.compute_dtype == "bfloat16" and run.linear_dtype is None


@pytest.mark.parametrize("name", READ)
def test_a_blank_is_a_note_or_a_reason_or_follows_from_the_rest(name):
    try:
        run = changed(**{name: ""})
    except InvalidValueError as error:
        reason = name if name in SIZES else "but 64 GPUs"  # other degrees don't make the world
        assert name in (*SIZES, "tp", "pp") and reason in str(error)
        return
    assert name not in SIZES
    same = run.plan == read_row(FULL).plan and run.shape == read_row(FULL).shape
    assert run.notes or same, f"{name} was assumed without a note"


@pytest.mark.parametrize("name", READ)
def test_a_missing_column_is_a_blank(name):
    cells = {key: value for key, value in FULL.items() if key != name}
    if name in (*SIZES, "tp", "pp"):
        with pytest.raises(InvalidValueError):
            read_row(cells)
    else:
        assert read_row(cells) == changed(**{name: ""})


def test_what_is_assumed_for_blanks():
    run = read_row({"layers": "24", "hidden": "2048", "seq_len": "1024", "global_batch": "16"})
    assert (run.shape.heads, run.shape.ffn, run.shape.vocabulary) == (16, 8192, VOCABULARY)
    assert run.plan.world_size == 1 and run.plan.micro_batches == 16
    text = "; ".join(run.notes)
    for name in ("heads", "kv_heads", "ffn", "vocab", "glu", "tp", "pp", "cp", "n_gpus",
                 "micro_batch", "gpus_per_node"):  # fmt: skip
        assert name in text
    for word in ("stack", "recomputation", "bfloat16"):
        assert word in text


NUMBERS = ["layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "n_gpus",
           "gpus_per_node", "global_batch", "micro_batch", "grad_accum", "tp", "pp", "dp", "cp",
           "ep", "virtual_stages"]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("cell", ["4 x 100", "-8", "eight", "8.5", "nan", "inf", "1e999", "0x10",
                                  "\uff18", "8;", "1,024"])  # fmt: skip
def test_a_number_that_is_none_names_its_cell(name, cell):
    with pytest.raises(InvalidValueError) as error:
        changed(**{name: cell})
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("cell", ["0", "1e300", "99999999999999999999"])
def test_numbers_that_nothing_has_are_refused_or_priced_but_never_crash(name, cell):
    try:
        run = changed(**{name: cell})
    except InvalidValueError as error:
        assert "\n" not in str(error)
    else:
        assert cell == "0" or run.plan.world_size < 10**12


@pytest.mark.parametrize("name", ["layers", "hidden", "tp", "micro_batch"])
@pytest.mark.parametrize("cell", ["8.0", " 8 ", "0.8e1"])
def test_whole_numbers_may_be_written_as_tables_write_them(name, cell):
    small = {"layers": "8", "hidden": "8", "tp": "8", "micro_batch": "8"}[name]
    cells = {"heads": "8", "kv_heads": "8", "n_gpus": "", "dp": "1", "global_batch": "64",
             "grad_accum": "", "pp": "1", "virtual_stages": ""}  # fmt: skip
    assert changed(**{**cells, name: cell.strip()}) == changed(**{**cells, name: small})


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ({"arch": "moe"}, "arch"),
        ({"ep": "8"}, "ep"),
        ({"n_gpus": "60"}, "60 GPUs"),
        ({"dp": "16"}, "64 GPUs"),
        ({"precision": "fp32"}, "precision"),
        ({"global_batch": "", "grad_accum": ""}, "global_batch"),
        ({"micro_batch": "", "global_batch": ""}, "micro_batch"),
        ({"heads": "33"}, "33 heads"),
        ({"kv_heads": "3"}, "heads"),
    ],
)
def test_rows_that_contradict_themselves_or_are_of_something_else(cells, names):
    with pytest.raises(InvalidValueError, match=names) as error:
        changed(**cells)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "chunks", "kind", "parts", "noted"),
    [
        ("1F1B", "1", ScheduleKind.ONE_F_ONE_B, 1, False),
        ("interleaved 1F1B", "3", ScheduleKind.INTERLEAVED, 3, False),
        ("1F1B-I", "2", ScheduleKind.INTERLEAVED, 2, False),
        ("1F1B (interleaved where used, not stated per row)", "", ScheduleKind.ONE_F_ONE_B, 1,
         None),
        ("1F1B (interleaved_overlap flag)", "", ScheduleKind.ONE_F_ONE_B, 1, None),
        ("interleaved (depth/breadth-first hybrid)", "7", ScheduleKind.INTERLEAVED, 7, None),
        ("none", "1", ScheduleKind.ONE_F_ONE_B, 1, True),
        ("", "", ScheduleKind.ONE_F_ONE_B, 1, True),
        ("zbb", "", ScheduleKind.ZB_H1, 1, None),
        ("ZB-1p", "", ScheduleKind.ZB_H1, 1, None),
        ("ZB-2p", "", ScheduleKind.ZB_H2, 1, None),
        ("ZB-V", "", ScheduleKind.ZB_V, 2, None),
        ("V-half", "", ScheduleKind.ZB_V, 2, True),
        ("V-min", "", ScheduleKind.ZB_V, 2, True),
    ],
)  # fmt: skip
def test_schedules_as_published(text, chunks, kind, parts, noted):
    run = changed(schedule=text, virtual_stages=chunks)
    assert (run.plan.schedule, run.plan.chunks) == (kind, parts)
    if noted is not None:
        assert bool(run.notes) == noted


def test_without_a_pipeline_no_schedule_matters():
    run = changed(pp="1", dp="32", schedule="ZB-V", virtual_stages="4", global_batch="512")
    assert (run.plan.schedule, run.plan.chunks) == (ScheduleKind.ONE_F_ONE_B, 1)


@pytest.mark.parametrize(
    ("text", "zero", "shard"),
    [
        ("none (plain DP)", 0, 0), ("none", 0, 0), ("DDP", 0, 0), ("ZeRO-0", 0, 0),
        ("not stated (repo models plain DP all-reduce)", 0, 0),
        ("ZeRO-1", 1, 0), ("distributed optimizer (recipe)", 1, 0),
        ("distributed optimizer (recipe default)", 1, 0),
        ("distributed optimizer (ZeRO-1 like)", 1, 0),
        ("DDP + distributed optimizer (recipe default)", 1, 0),
        ("ZeRO-1 over all DP ranks", 1, 0), ("ZeRO-1 within groups of 4", 1, 4),
        ("ZeRO-1 within groups of 8", 1, 0), ("ZeRO-2", 2, 0), ("SHARD_GRAD_OP", 2, 0),
        ("FSDP", 3, 0), ("FSDP2 full shard", 3, 0), ("FULL_SHARD", 3, 0),
        ("Megatron-FSDP (shard 8)", 3, 0), ("ZeRO-3 + CPU offload", 3, 0),
        ("FSDP, optimizer+gradients sharded, params not resharded after forward", 2, 0),
    ],
)  # fmt: skip
def test_data_parallelism_as_published(text, zero, shard):
    plan = changed(zero_fsdp=text).plan
    assert (plan.zero, plan.shard) == (zero, shard)


def test_hybrid_shards_lie_inside_a_node():
    run = changed(zero_fsdp="HSDP", tp="1", pp="1", dp="64", global_batch="1024")
    assert (run.plan.zero, run.plan.shard) == (3, 8) and run.notes


@pytest.mark.parametrize(
    ("text", "kind", "noted"),
    [
        ("full", Recompute.LAYER, False),
        ("full (repo config use_checkpoint=true)", Recompute.LAYER, False),
        ("selective", Recompute.ATTENTION, False),
        ("selective (recipe)", Recompute.ATTENTION, False),
        ("selective (attention core)", Recompute.ATTENTION, False),
        ("selective op", Recompute.REGION, None),
        ("selective: norm + MLP activation recomputed", Recompute.REGION, None),
        ("selective layer (frequency not stated)", Recompute.REGION, True),
        ("none", Recompute.NONE, False), ("none stated for 8K", Recompute.NONE, None),
        ("none (not stated)", Recompute.NONE, True), ("not stated", Recompute.NONE, True),
        ("not stated (recipe)", Recompute.NONE, True), ("", Recompute.NONE, True),
    ],
)  # fmt: skip
def test_recomputation_as_published(text, kind, noted):
    run = changed(recompute=text)
    assert run.plan.recompute is kind
    if noted is not None:
        assert any("recompu" in note for note in run.notes) == noted


@pytest.mark.parametrize(
    ("text", "tensor", "parallel"),
    [
        ("yes", "2", True), ("yes (REDUCE_SCATTER)", "2", True),
        ("recipe default (yes when TP>1)", "2", True), ("yes", "1", False),
        ("recipe default (yes when TP>1)", "1", False), ("no", "2", False),
        ("not stated", "2", False), ("", "2", False),
    ],
)  # fmt: skip
def test_sequence_parallelism_as_published(text, tensor, parallel):
    run = changed(seq_parallel=text, tp=tensor, dp="", global_batch="512", grad_accum="")
    assert run.plan.sequence_parallel is parallel
    if tensor == "2" and text in ("", "not stated"):
        assert any("sequence" in note for note in run.notes)


@pytest.mark.parametrize(
    ("text", "compute", "linear"),
    [
        ("bf16", "bfloat16", None), ("BF16", "bfloat16", None), ("fp16", "float16", None),
        ("fp16 mixed", "float16", None), ("bf16 (not stated)", "bfloat16", None),
        ("fp16/bf16 mixed (not stated in data file)", "float16", None),
        ("FP8", "bfloat16", "float8_e4m3fn"), ("FP8-CS", "bfloat16", "float8_e4m3fn"),
        ("float8 linear + bf16", "bfloat16", "float8_e4m3fn"),
        ("float8 rowwise", "bfloat16", "float8_e4m3fn"), ("amp_fp8", "bfloat16", "float8_e4m3fn"),
        ("amp_bf16", "bfloat16", None), ("mixed (not stated)", "bfloat16", None),
        ("", "bfloat16", None),
    ],
)  # fmt: skip
def test_precision_as_published(text, compute, linear):
    run = changed(precision=text)
    assert (run.training.compute_dtype, run.linear_dtype) == (compute, linear)
    assert run.training.master_dtype == "float32"


def test_states_in_half_precision():
    training = changed(precision="bf16 params and optimizer state").training
    assert training.master_dtype == training.accumulate_dtype == "bfloat16"


def test_stacks_decide_what_rows_leave_out():
    old = changed(framework="Megatron-DeepSpeed (BigScience fork)", glu="0")
    assert old.shape.attention is AttentionKernel.UNFUSED and old.shape.dropout
    assert any("unfused" in note for note in old.notes)
    assert old.stack.software.startswith("megatron-deepspeed") and not old.plan.overlap_gradients
    assert old.stack.blocking
    fork = {"framework": "Megatron-DeepSpeed (BigScience fork)", "precision": "fp16", "glu": "0"}
    assert not changed(**fork, gpu="V100-SXM2-32GB").stack.blocking
    dated, later = (changed(framework=f"Megatron-LM{date}").stack for date in (" (Jan 2024)", ""))
    assert dated.software == later.software == "megatron-core" and not dated.fuses and later.fuses
    assert changed(framework="nanotron v0.5").stack.software == "nanotron"
    assert any("stack" in note for note in changed(framework="my own loop").notes)


def test_eager_runs_fuse_nothing():
    compiled, eager = (changed(other_settings=text) for text in ("torch.compile", "eager"))
    assert compiled.shape.fused_gate and compiled.shape.fused_loss and not compiled.shape.composed
    unfused = replace(compiled.shape, fused_gate=False, fused_loss=False, composed=True)
    assert eager.shape == unfused
    assert changed(other_settings="").shape == compiled.shape


def test_data_degrees_may_be_counted_with_context_ranks():
    """64 GPUs, tp 2, pp 2, cp 2: 8 replicas, which some tables print as 16."""
    cells = {"tp": "2", "pp": "2", "cp": "2", "virtual_stages": "1", "schedule": "1F1B"}
    run, counted = changed(**cells, dp="8"), changed(**cells, dp="16")
    assert run.plan == counted.plan and run.plan.data == 8
    assert run.notes == () and counted.notes == ("dp counted with cp",)


def test_batches_that_do_not_agree_are_noted():
    run = changed(grad_accum="4")
    assert run.plan.micro_batches == 8 and any("grad_accum" in note for note in run.notes)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(READ),
        st.one_of(st.text(max_size=12), st.integers(-5, 10**6).map(str), st.just("")),
    )
)
def test_any_cells_are_read_or_refused_in_one_line(cells):
    try:
        run = changed(**cells)
    except InvalidValueError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert all(note and "\n" not in note for note in run.notes)


@pytest.mark.parametrize(
    ("source", "settings", "loss", "gate"),
    [
        ("benchmarks/llama3_h100_202412_torchtitan.md", "torch.compile", False, True),
        ("benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md", "torch.compile", True, True),
        ("benchmarks/llama3_h100_202412_torchtitan.md", "eager", False, False),
        ("docs/performance.md", "", True, True), ("docs/performance.md", "eager", False, False),
    ],
)  # fmt: skip
def test_what_torchtitan_compiles(source, settings, loss, gate):
    """Layers where the run says so, the loss since April 2025; every second product is kept."""
    run = changed(
        framework="torchtitan", source_ref=source, other_settings=settings,
        recompute="selective op", glu="1",
    )  # fmt: skip
    assert (run.shape.fused_loss, run.shape.fused_gate) == (loss, gate)
    assert run.plan.alternate and run.plan.compiled == gate
    assert not changed(recompute="selective: norm + MLP activation recomputed").plan.alternate


@pytest.mark.parametrize(
    ("settings", "offload"),
    [("activation offload ratio 0.276", 276), ("activation offload ratio 1", 1000), ("", 0)],
)
def test_activations_on_the_host(settings, offload):
    assert changed(other_settings=settings).plan.offload == offload


DIGITS = "9" * 5000
"""More than int() converts."""


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ({"zero_fsdp": "sharded"}, "zero_fsdp 'sharded' not known: plain data parallelism assumed"),
        ({"zero_fsdp": f"ZeRO-1 within groups of {DIGITS}"}, None),
        ({"seq_parallel": "maybe"}, "seq_parallel 'maybe' not known: none assumed"),
        ({"seq_parallel": "no"}, None),
        ({"precision": "int8"}, "precision 'int8' not known: bfloat16 assumed"),
        ({"global_batch": "130", "grad_accum": ""}, "global_batch 130 priced as 8 x 2 x 8"),
        ({"global_batch": "128", "grad_accum": ""}, None),
    ],
)
def test_words_that_are_not_known_are_notes(cells, note):
    notes = changed(**cells).notes
    assert (not notes) if note is None else any(note in one for one in notes), notes


@pytest.mark.parametrize(
    ("text", "stage"),
    [("zero1", 1), ("ZeRO 2", 2), ("zero_3", 3), ("ZeRO stage 1", 1), ("ZeRO-0", 0), ("DDP", 0)],
)
def test_a_stage_of_zero_however_it_is_written(text, stage):
    run = changed(zero_fsdp=text)
    assert run.plan.zero == stage and run.notes == ()


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"precision": "float32"}, "not priced"),
        ({"kv_heads": "1"}, "heads of keys and values"),
        ({"ffn": "14337"}, "feed-forward"),
        ({"gpus_per_node": "3"}, "no multiple of 3 in a node"),
        ({"cp": "8", "dp": "1", "seq_len": "7"}, "cp 8 cuts 7 tokens"),
    ],
)
def test_what_has_no_price_is_refused(cells, reason):
    with pytest.raises(InvalidValueError, match=reason):
        changed(**cells)


def test_a_row_in_float16_by_its_long_name():
    assert changed(precision="float16").training.compute_dtype == "float16"


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ({"recompute": "banana"}, "recompute 'banana' not known: none assumed"),
        ({"recompute": ""}, "no recomputation assumed"),
        ({"schedule": "dualpipe", **FLAT}, "schedule 'dualpipe' not known: 1F1B assumed"),
        ({"schedule": "", **FLAT}, "1F1B assumed"),
    ],
)
def test_unknown_words_are_told_from_blank_cells(cells, note):
    assert changed(**cells).notes == (note,)
