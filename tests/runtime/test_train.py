"""The training loop: against a plain loop of torch, on one rank and on simulated ones."""

import io
import json

import numpy as np
import pytest
import torch

from shardwise.ir.errors import MismatchError
from shardwise.runtime.corpus import Corpus
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.launch import build_model
from shardwise.runtime.rank_failure import RanksFailedError
from shardwise.runtime.summary import summary
from shardwise.runtime.switches import Reference
from shardwise.runtime.thread_communicator import run_ranks
from shardwise.runtime.train import progress
from shardwise.solvers.batcher import Slot
from tests.support.tiny_decoder import documents, plan_of, write_job
from tests.support.training_rig import alone, losses, trainer_of

CLIPPED = ('schedule = "cosine"', 'schedule = "cosine"\nclip_norm = 1.0')
EVALUATED = ("[run]", "[run]\neval_every = 2\neval_documents = 7")


def training(clip_norm=None):
    from shardwise.ir.training import TrainingSpec

    return TrainingSpec(clip_norm=clip_norm)


def oracle(job_path, steps, clip_norm=None, held_out=0):
    """(losses, norms, losses of the documents held out): document by document, without padding."""
    job = load_job(job_path)
    model = build_model(job)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    found = documents()
    lengths = np.array([len(d) for d in found])[: len(found) - held_out]
    order, position = np.random.default_rng([0, 0]).permutation(len(lengths)).tolist(), 0
    order += np.random.default_rng([0, 1]).permutation(len(lengths)).tolist()

    def loss_of(document):
        ids = torch.from_numpy(document)[None]
        return model(ids, ids) * (len(document) - 1)

    result, norms, evaluated = [], [], []
    for step in range(steps):
        tokens = weight = total = 0
        while tokens < job.tokens_per_step:
            document = found[order[position]]
            position += 1
            tokens, weight = tokens + len(document), weight + len(document) - 1
            loss = loss_of(document)
            loss.backward()
            total += loss.item()
        for parameter in model.parameters():
            parameter.grad /= weight
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or 1e9)))
        for group in optimizer.param_groups:
            group["lr"] = job.schedule.rate(step, job.steps)
        optimizer.step()
        optimizer.zero_grad()
        result.append(total / weight)
        with torch.no_grad():
            last = found[len(lengths) :]
            targets = sum(len(document) - 1 for document in last)
            evaluated.append(sum(float(loss_of(d)) for d in last) / max(1, targets))
    return result, norms, evaluated


@pytest.mark.parametrize(
    ("mesh", "scheme"), [("x0=2@l", "ZeRO-3"), ("x0=2@l", "DDP"), ("x0=2@l data=2@l", "ZeRO-1")]
)
def test_losses_and_norms_are_those_of_a_plain_loop(tmp_path, mesh, scheme):
    path = write_job(tmp_path, [CLIPPED])
    plan = plan_of(mesh, scheme, training=training(1.0))
    model = build_model(load_job(path))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def run(communicator):
        trainer = trainer_of(communicator, path, plan, model=model)
        records = [trainer.one_step() for _ in range(3)]
        totals = trainer.totals
        return records, totals.switches, totals.switch_bytes, set(totals.slots)

    results = run_ranks(plan.mesh.world_size, run, timeout_s=200)
    expected, norms, _ = oracle(path, 3, 1.0)
    for records, switches, switch_bytes, slots in results:
        assert [r["loss"] for r in records] == pytest.approx(expected, rel=1e-4)
        assert [r["grad_norm"] for r in records] == pytest.approx(norms, rel=1e-4)
        assert slots == {"data@16", "ulysses@64"}
        assert switches >= 3 and switch_bytes == 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), "the model's own weights were stepped"


def test_one_rank_evaluates_and_writes_metrics(tmp_path):
    path = write_job(tmp_path, [EVALUATED])
    trainer = trainer_of(alone(), path, plan_of("1"))
    metrics, saved = io.StringIO(), []
    totals = trainer.run(metrics, lambda trainer: saved.append(trainer.step))
    expected, _, evaluated = oracle(path, 4, held_out=7)
    lines = [json.loads(line) for line in metrics.getvalue().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4] and saved == [4]
    assert [line["loss"] for line in lines] == pytest.approx(expected, rel=1e-4)
    assert ["eval_loss" in line for line in lines] == [False, True, False, True]
    assert [lines[i]["eval_loss"] for i in (1, 3)] == pytest.approx(evaluated[1::2], rel=1e-4)
    assert [line["learning_rate"] for line in lines] == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3])
    for index, line in enumerate(lines):
        indices = trainer.sampler.batch(index)
        assert indices.max() < 33
        chosen = [trainer.corpus.documents[i] for i in indices]
        assert line["documents"] == len(chosen)
        assert line["tokens"] == sum(map(len, chosen)) >= 256
        assert line["targets"] == line["tokens"] - len(chosen)
        assert sum(line["slots"].values()) >= 1
        assert line["grad_norm"] is None and line["collective_bytes_per_rank"] == 0
        assert 0 < line["slots_s"] < line["step_s"] and line["predicted_slots_s"] > 0
    assert totals.steps == 4 and totals.tokens == sum(line["tokens"] for line in lines)
    assert [line.split("  ")[0] for line in trainer.said] == [f"step {i}/4" for i in range(1, 5)]
    assert "held out" in trainer.said[1] and "held out" not in trainer.said[0]
    text = summary(trainer)
    assert "held out: the last 7 documents of the corpus" in text
    assert "0 switches, 0 bytes moved by them" in text
    assert "peak per rank: predicted 1 MB" in text


def test_evaluation_changes_nothing_and_moves_nothing_of_steps(tmp_path):
    quiet = write_job(tmp_path, [("[run]", "[run]\neval_every = 9\neval_documents = 7")])
    plan = plan_of("x0=2@l", "ZeRO-1")
    model = build_model(load_job(quiet))

    def run(communicator, evaluates):
        trainer = trainer_of(communicator, quiet, plan, model=model)
        records = []
        for _ in range(3):
            records.append(trainer.one_step())
            if evaluates:
                trainer.evaluate()
        return [(r["loss"], r["collective_bytes_per_rank"]) for r in records], trainer.totals

    plain = run_ranks(2, lambda c: run(c, False), timeout_s=100)
    evaluated = run_ranks(2, lambda c: run(c, True), timeout_s=100)
    for one, two in zip(plain, evaluated, strict=True):
        assert one[0] == two[0] and one[0][0][1] > 0
        assert two[1].switch_bytes == 0 and two[1].switches > 0


def test_bytes_that_a_switch_moves_are_seen(tmp_path):
    path = write_job(tmp_path)
    plan = plan_of("x0=2@l")
    model = build_model(load_job(path))

    def run(communicator):
        trainer = trainer_of(communicator, path, plan, model=model)
        run_slot, last = trainer.program.run_slot, [None]

        def leaky(bucket, batch):
            if last[0] not in (None, bucket):
                communicator.all_reduce(torch.zeros(10), (0, 1))
            last[0] = bucket
            return run_slot(bucket, batch)

        trainer.program.run_slot = leaky
        losses(trainer, 2)
        return trainer.totals

    for totals in run_ranks(2, run, timeout_s=100):
        assert totals.switches > 0
        assert totals.switch_bytes == 40 * totals.switches


def test_reference_of_slots():
    reference = Reference({(0, 16): 3, (1, 64): 50}, 1000)
    slots = [Slot(0, 16, ()), Slot(1, 64, ()), Slot(0, 16, ())]
    assert reference.step_bytes(slots) == 1056
    assert reference.step_bytes([]) == 1000


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_rank_with_other_slots_is_named(tmp_path, wrong):
    path = write_job(tmp_path)
    plan = plan_of("data=3@l", "DDP")
    model = build_model(load_job(path))
    arrays = documents()

    def run(communicator):
        mine = list(arrays)
        if communicator.rank == wrong:
            mine = [d[: 1 + len(d) // 2] for d in mine]
        trainer = trainer_of(
            communicator, path, plan, model=model, corpus=Corpus(tuple(mine), 0, 0)
        )
        trainer.one_step()

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(3, run, timeout_s=100)
    summary_line = caught.value.first.summary
    assert MismatchError.__name__ in summary_line
    assert f"step 1: rank {wrong} of 3 has other slots" in summary_line


def test_rehearsal_leaves_masters_alone(tmp_path):
    path = write_job(tmp_path)
    trainer = trainer_of(alone(), path, plan_of("1"))
    weights = build_model(load_job(path)).state_dict()
    for name, master in trainer.program.named_parameters():
        assert torch.equal(master.data, weights[name])
    assert trainer.optimizer.state == {}


def test_progress_line():
    record = {
        "step": 3, "loss": 1.25, "eval_loss": 2.5, "tokens_per_s": 1000.0, "step_s": 0.5,
        "predicted_slots_s": 0.2, "slots_s": 0.4, "slots": {"data@16": 2, "ulysses@64": 1},
    }  # fmt: skip
    assert progress(record, 10) == (
        "step 3/10  loss 1.2500  held out 2.5000  1000 tokens/s  0.50 s "
        "(slots predicted/measured 0.50)  2xdata@16 1xulysses@64"
    )


def test_sgd(tmp_path):
    from shardwise.ir.training import TrainingSpec

    path = write_job(tmp_path, [("steps = 4", 'steps = 4\noptimizer = "sgd"\nweight_decay = 0.0')])
    trainer = trainer_of(alone(), path, plan_of("1", training=TrainingSpec("sgd")))
    before = {name: master.data.clone() for name, master in trainer.program.named_parameters()}
    record = trainer.one_step()
    model = build_model(load_job(path))
    for index in trainer.sampler.batch(0):
        ids = torch.from_numpy(trainer.corpus.documents[index].astype(np.int64))[None]
        (model(ids, ids) * (ids.shape[1] - 1) / record["targets"]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, master in trainer.program.named_parameters():
        torch.testing.assert_close(
            master.data, before[name] - 5e-3 * gradients[name], rtol=1e-4, atol=1e-6
        )
