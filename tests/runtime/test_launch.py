"""A job from files to a finished run on one rank; export to transformers and back."""

import json
from pathlib import Path

import pytest
import torch

from shardwise.ir.errors import MismatchError
from shardwise.ir.plan_file import save as save_plan
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.checkpoint import read_masters, read_place
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.launch import METRICS, build_model, export, train, train_on
from shardwise.runtime.safetensors_files import merge_sections
from tests.support.tiny_decoder import plan_of, write_job
from tests.support.training_rig import alone

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_embd": 16,
    "n_layer": 1, "n_head": 2, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True,
}  # fmt: skip
"""Tied, and with fused weights."""


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "run" / METRICS).read_text().splitlines()]


def test_train_resume_and_nothing_left(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    path = write_job(tmp_path, [("[run]", "[run]\nsave_every = 2\nlog_every = 3")])
    plan_path = tmp_path / "plan.json"
    save_plan(plan_of("1"), plan_path)
    said: list[str] = []
    whole = train(path, plan_path, resume=None, say=said.append)
    folder = tmp_path / "run"
    assert said[0].startswith("1 ranks, mesh 1; corpus: 40 documents")
    assert [line.split("  ")[0] for line in said[1:5]] == [
        f"saved {folder / 'step-2'}", "step 3/4", "step 4/4", f"saved {folder / 'step-4'}",
    ]  # fmt: skip
    assert said[5].startswith("trained 4 steps")
    lines = metrics_of(tmp_path)
    assert [line["loss"] for line in lines] == whole.losses

    (folder / METRICS).write_text((folder / METRICS).read_text() + '{"step": ')  # killed
    said.clear()
    rest = train_on(
        alone(), load_job(path), plan_of("1"), resume=folder / "step-2", say=said.append
    )
    assert rest.losses == whole.losses[2:]
    again = metrics_of(tmp_path)
    assert [line["loss"] for line in again] == [line["loss"] for line in lines]
    assert again[:2] == lines[:2] and said[-1].startswith("trained 2 steps")

    said.clear()
    train_on(alone(), load_job(path), plan_of("1"), resume=folder / "step-4", say=said.append)
    assert said[-1] == "nothing to train: step 4 of 4 is done already"
    assert metrics_of(tmp_path) == again

    assert export(folder / "step-4", path, tmp_path / "out") == len(read_masters(folder / "step-4"))
    changed = write_job(tmp_path, [("seed = 5", f'seed = 5\ninit = "hf:{tmp_path / "out"}"')])
    loaded = dict(build_model(load_job(changed)).named_parameters())
    for name, master in read_masters(folder / "step-4").items():
        assert torch.equal(loaded[name], master)


@pytest.mark.parametrize(
    ("changes", "plan", "says"),
    [
        ([], {"mesh": "x0=2@l"}, "the plan is for 2 ranks"),
        ([("max_length = 64", "max_length = 70")], {"bands": ((0, 32, "data", 1),)}, "no bucket"),
        ([], {"training": TrainingSpec(clip_norm=3.0)}, "at training: the plan is for"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_written(tmp_path, changes, plan, says):
    plan = plan_of(plan.pop("mesh", "1"), **plan)
    with pytest.raises(MismatchError, match=says) as caught:
        train_on(alone(), load_job(write_job(tmp_path, changes)), plan, say=print)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_export_for_transformers(tmp_path):
    """A fused, tied model: a step, export, from_pretrained: equal weights, equal logits."""
    from transformers import AutoModelForCausalLM

    config = tmp_path / "gpt2.json"
    config.write_text(json.dumps(GPT2))
    path = write_job(
        tmp_path,
        [
            ("tests.support.tiny_decoder:build", f"hf:{config}"),
            ("steps = 4", "steps = 1"),
            ("warmup_steps = 2", "warmup_steps = 1"),
        ],
    )
    found = trace_language_model(load_model(f"hf:{config}"), compute_dtype="float32", longest=64)
    plan = plan_of("1", found=found)
    train_on(alone(), load_job(path), plan, say=lambda _: None)
    step = tmp_path / "run" / "step-1"
    out = tmp_path / "exported"
    count = export(step, path, out)
    assert {"config.json", "model.safetensors"} <= {file.name for file in out.iterdir()}
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    assert count == len(list(model.parameters()))
    assert model.lm_head.weight is model.transformer.wte.weight
    weights = model.state_dict()
    masters = merge_sections(read_masters(step), read_place(step)["sections"])
    first = build_model(load_job(path)).state_dict()
    for name, master in masters.items():
        assert torch.equal(weights[name], master), name
        assert not torch.equal(weights[name], first[name]), f"{name} was not trained"

    again = write_job(
        tmp_path,
        [
            ("tests.support.tiny_decoder:build", f"hf:{config}"),
            ("seed = 5", f'init = "hf:{Path(out)}"'),
        ],
    )
    loaded = build_model(load_job(again)).eval()
    ids = torch.arange(12).view(2, 6)
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
