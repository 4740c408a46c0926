"""Steps as a pure function of seed and step; micro-batches that hold every document once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.certificate import LongDocuments
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.runtime.corpus import Corpus
from shardwise.runtime.data import (
    IGNORED,
    PAD,
    Sampler,
    StepData,
    check_corpus,
    held_out,
    micro_batch,
    step_data,
)
from shardwise.solvers.batcher import Slot, bucket_shapes
from tests.support.tiny_decoder import documents, plan_of

CPU = torch.device("cpu")


def corpus_of(arrays):
    return Corpus(tuple(np.asarray(a, dtype=np.int64) for a in arrays), 0, 0)


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=20).map(
    lambda values: np.array(values, dtype=np.int64)
)


def walked(lengths, tokens_per_step, seed, steps):
    """The same batches document by document: an endless deal, cut where the tokens suffice."""
    batches, epoch, order = [], -1, []
    for _ in range(steps):
        chosen, tokens = [], 0
        while tokens < tokens_per_step:
            if not order:
                epoch += 1
                rng = np.random.default_rng([seed, epoch])
                order = rng.permutation(len(lengths)).tolist()
            chosen.append(order.pop(0))
            tokens += int(lengths[chosen[-1]])
        batches.append(chosen)
    return batches


@settings(max_examples=60)
@given(LENGTHS, st.integers(1, 200), st.integers(0, 3), st.permutations(range(5)))
def test_any_step_may_be_asked_for_at_any_time(lengths, tokens, seed, order):
    expected = walked(lengths, tokens, seed, 5)
    sampler = Sampler(lengths, tokens_per_step=tokens, seed=seed)
    for step in order:
        assert sampler.batch(step).tolist() == expected[step]
    resumed = Sampler(lengths, tokens_per_step=tokens, seed=seed)
    assert resumed.batch(4).tolist() == expected[4]
    assert resumed.start(4) == sampler.start(4)


def test_every_document_once_an_epoch():
    lengths = np.array([5, 1, 9, 4, 4, 2], dtype=np.int64)
    sampler = Sampler(lengths, tokens_per_step=5, seed=1)
    seen: list[int] = []
    step = 0
    while len(seen) < 12:
        seen += sampler.batch(step).tolist()
        step += 1
    assert sorted(seen[:6]) == sorted(seen[6:12]) == list(range(6))
    assert seen[:6] != seen[6:12]
    assert sampler.start(0) == (0, 0)


def test_seeds_differ():
    lengths = np.full(50, 3, dtype=np.int64)
    first, second = (Sampler(lengths, tokens_per_step=60, seed=seed).batch(0) for seed in (0, 1))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_a_sampler_needs_documents(lengths):
    with pytest.raises(InvalidValueError, match="needs documents"):
        Sampler(np.array(lengths, dtype=np.int64), tokens_per_step=3, seed=0)


def test_held_out_are_the_last():
    corpus = corpus_of([[1]] * 5)
    assert held_out(corpus, 2).tolist() == [3, 4]
    assert held_out(corpus, 0).tolist() == []
    with pytest.raises(InvalidValueError, match="5 documents held out of 5"):
        held_out(corpus, 5)


@pytest.mark.parametrize("mesh", ["1", "x0=2@l", "x0=2@l data=2@l", "data=4@l"])
def test_every_document_is_in_one_row_with_its_tokens(mesh):
    plan, corpus = plan_of(mesh), corpus_of(documents())
    data = step_data(corpus, plan, np.arange(40, dtype=np.int64))
    rows = []
    for slot in data.slots:
        bucket = plan.buckets[slot.bucket]
        for replica in range(bucket.batch_degree):
            batch = micro_batch(corpus, data, slot, seats=bucket.seats, replica=replica, device=CPU)
            ids, labels = batch["input_ids"], batch["labels"]
            assert ids.shape == labels.shape == (bucket.seats, slot.length)
            assert ids.dtype == labels.dtype == torch.int64
            for row, targets in zip(ids, labels, strict=True):
                real = int((targets != IGNORED).sum())
                assert (targets[real:] == IGNORED).all() and (row[real:] == PAD).all()
                assert torch.equal(row[:real], targets[:real])
                if real:
                    rows.append(row[:real].tolist())
    assert sorted(rows) == sorted(d.tolist() for d in corpus.documents)


def test_empty_seats_are_masked():
    corpus = corpus_of([[7, 8]])
    data = StepData(np.array([0]), (), 0)
    slot = Slot(0, 4, ((0,), ()))
    one, two = (
        micro_batch(corpus, data, slot, seats=2, replica=replica, device=CPU)
        for replica in range(2)
    )
    assert one["input_ids"].tolist() == [[7, 8, 0, 0], [0, 0, 0, 0]]
    assert one["labels"].tolist() == [[7, 8, -100, -100], [-100] * 4]
    assert (two["labels"] == IGNORED).all() and (two["input_ids"] == PAD).all()


def test_other_inputs_are_refused():
    with pytest.raises(UnsupportedError, match=r"the model reads mask.*by hand"):
        micro_batch(
            corpus_of([[1]]), StepData(np.array([0]), (), 0), Slot(0, 4, ((0,),)),
            seats=1, replica=0, names=("input_ids", "mask"), device=CPU,
        )  # fmt: skip


def test_digest_sees_slots_and_documents():
    corpus, plan = corpus_of(documents()), plan_of("x0=2@l")
    one = step_data(corpus, plan, np.arange(10, dtype=np.int64))
    assert one.digest() == step_data(corpus, plan, np.arange(10, dtype=np.int64)).digest()
    assert 0 <= one.digest() < 2**63
    swapped = np.array([1, 0, *range(2, 10)], dtype=np.int64)
    assert one.digest() != StepData(swapped, one.slots, 0).digest()
    assert one.digest() != StepData(one.documents, one.slots[1:], 0).digest()


def test_documents_over_the_last_bucket():
    corpus = corpus_of([[1] * 5, [1] * 65, [1] * 70])
    plan = plan_of("1")
    with pytest.raises(MismatchError) as caught:
        check_corpus(corpus, plan)
    for part in ("document 1 has 65 tokens", "S(16,64]", "2 documents", "max_length to 64"):
        assert part in str(caught.value)
    dropping = plan_of("1", long_documents=LongDocuments.DROP)
    check_corpus(corpus, dropping)
    data = step_data(corpus, dropping, np.array([1, 0, 2]))
    assert (data.documents.tolist(), data.dropped) == ([0], 2)
    assert len(data.slots) == 1


def test_documents_between_buckets():
    plan = plan_of("1", bands=((0, 8, "data", 1), (16, 64, "data", 1)))
    check_corpus(corpus_of([[1] * 8, [1] * 17]), plan)
    with pytest.raises(MismatchError, match="document 0 has 9 tokens"):
        check_corpus(corpus_of([[1] * 9]), plan)


def test_shapes_of_a_plan():
    shapes = bucket_shapes(plan_of("x0=2@l data=2@l"))
    assert [(s.low, s.high, s.batch_degree, s.seats, s.padded) for s in shapes] == [
        (0, 16, 4, 2, (16,)),
        (16, 64, 2, 1, (64,)),
    ]
