"""Padded micro-batches of bidirectional models: the loss of every document is its loss alone."""

import json

import numpy as np
import pytest
import torch

from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.plan_file import save
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.corpus import Corpus
from shardwise.runtime.data import IGNORED, StepData, check_padding, micro_batch
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.launch import train_on
from shardwise.runtime.program import Program
from shardwise.runtime.thread_communicator import run_ranks
from shardwise.runtime.verify_command import spread
from shardwise.runtime.verify_precision import whole_tensors
from shardwise.runtime.verify_report import gradient_errors
from shardwise.solvers.batcher import Slot
from tests.support.tiny_decoder import plan_of, write_job
from tests.support.training_rig import alone
from tests.test_cli import assert_one_line, run

WIDE = TrainingSpec("adamw", "float64", "float64", "float64", "float64")
BANDS = ((0, 16, "data", 2), (16, 32, "tensor_sequence", 2), (32, 64, "ulysses", 1))
SIZES = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 80, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "type_vocab_size": 2,
}  # fmt: skip
CONFIGS = {
    "bert": {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES},
    "roberta": {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], **SIZES},
}
LENGTHS = {0: (1, 13, 7, 5), 1: (20, 32), 2: (33,)}
"""Documents of a slot of each bucket: unequal, so that all but the longest are padded."""


@pytest.fixture(params=CONFIGS)
def spec(request, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[request.param]))
    return f"hf:{path}"


def corpus():
    generator = np.random.default_rng(0)
    counts = [n for lengths in LENGTHS.values() for n in lengths]
    return Corpus(tuple(generator.integers(2, 64, size=n) for n in counts), 0, 0)


def test_padded_documents_lose_what_they_lose_alone(spec):
    """In float64, over every strategy, with an empty seat where the documents do not fill it."""
    torch.set_num_threads(1)
    model = spread(load_model(spec, weights="random", seed=0).double())
    traced = trace_language_model(model, compute_dtype="float64", longest=64)
    plan = plan_of("x0=2@l", "ZeRO-3", BANDS, found=traced, training=WIDE)
    found, names = corpus(), tuple(item.name for item in traced.graph.inputs)
    check_padding(found, plan, traced)
    data = StepData(np.arange(len(found.documents)), (), 0)
    slots = [
        Slot(0, 16, ((0, 1), (2, 3))), Slot(0, 16, ((1,), ())), Slot(1, 32, ((4, 5),)),
        Slot(2, 64, ((6,),)),
    ]  # fmt: skip

    def run_slots(communicator):
        program = Program.from_plan(model, plan, traced, communicator)
        losses = []
        for slot in slots:
            batch = micro_batch(
                found, data, slot, seats=plan.buckets[slot.bucket].seats,
                replica=plan.replica(slot.bucket, communicator.rank), names=names,
                device=torch.device("cpu"),
            )  # fmt: skip
            losses.append(program.run_slot(slot.bucket, batch))
        program.finish_step()
        gradients = whole_tensors(program, of_grad=True)
        return losses, gradients

    wanted, weight = [], 0
    ranks = run_ranks(2, run_slots, timeout_s=100)
    for slot in slots:
        total = 0.0
        for place in (place for row in slot.documents for place in row):
            ids = torch.from_numpy(found.documents[place].astype(np.int64))[None]
            loss = model(input_ids=ids, labels=ids).loss * ids.shape[1]
            loss.backward()
            total, weight = total + float(loss.detach()), weight + ids.shape[1]
        wanted.append(total)
    parameters = dict(model.named_parameters())
    for losses, gradients in ranks:
        assert [result.loss_sum for result in losses] == pytest.approx(wanted, rel=1e-11)
        expected = {name: parameters[name].grad / weight for name in gradients}
        assert max(gradient_errors(gradients, expected).values()) <= 1e-11


def test_a_loop_by_hand_traces_it_alike(spec):
    """`Program.from_plan` without a trace, and its batches need the mask."""
    model = load_model(spec, weights="random", seed=0)
    traced = trace_language_model(model, compute_dtype="float32", longest=64)
    program = Program.from_plan(model, plan_of("1", found=traced))
    ids = torch.ones(1, 16, dtype=torch.int64)
    with pytest.raises(InvalidValueError, match="the model reads attention_mask; add it"):
        program.run_slot(0, {"input_ids": ids, "labels": ids})
    batch = {"input_ids": ids, "labels": ids, "attention_mask": ids}
    assert program.run_slot(0, batch).loss_sum > 0


def test_the_mask_is_one_for_tokens_and_in_empty_seats():
    found = corpus()
    data = StepData(np.arange(len(found.documents)), (), 0)
    names = ("input_ids", "attention_mask", "labels")
    batch = micro_batch(
        found, data, Slot(0, 16, ((1,), ())), seats=2, replica=0, names=names,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert batch["attention_mask"].tolist() == [[1] * 13 + [0] * 3, [1] * 16]
    assert batch["attention_mask"].dtype == torch.int64
    assert set(batch["labels"][1].tolist()) == {IGNORED}


def test_a_job_trains_one(spec, tmp_path):
    changes = [("tests.support.tiny_decoder:build", spec), ("steps = 4", "steps = 2")]
    job = load_job(write_job(tmp_path, changes))
    traced = trace_language_model(load_model(spec), compute_dtype="float32", longest=64)
    totals = train_on(alone(), job, plan_of("1", found=traced), say=lambda _: None)
    assert totals.steps == 2 and all(np.isfinite(totals.losses))


MODEL = "tests.support.bidirectional:build"


def unmasked():
    return trace_language_model(load_model(MODEL), compute_dtype="float32", longest=64)


def test_one_that_takes_no_mask_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    job = write_job(tmp_path, [("tests.support.tiny_decoder:build", MODEL)])
    save(plan_of("1", found=unmasked()), tmp_path / "plan.json")
    assert run("train", str(job), "--plan", str(tmp_path / "plan.json")) == 2
    assert_one_line(
        capsys.readouterr().err, "attention of the model (bidirectional.py:",
        "sees later positions", "attention_mask",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("lengths", "refused"),
    [((16, 16), False), ((64, 64), False), ((15, 15), True), ((16, 64), True)],
)
def test_documents_that_are_never_padded_are_welcome(lengths, refused):
    plan, traced = plan_of("1", found=unmasked()), unmasked()
    found = Corpus(tuple(np.ones(n, dtype=np.int64) for n in lengths), 0, 0)
    if refused:
        with pytest.raises(UnsupportedError, match="sees later positions"):
            check_padding(found, plan, traced)
    else:
        check_padding(found, plan, traced)
