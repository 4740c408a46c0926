"""Checkpoints: masters, optimizer state and the place in the data, under any plan and world size.

Masters and optimizer state are DTensors under the model's own names, saved and loaded by
torch.distributed.checkpoint, which reshards them to whatever layout the loading plan has.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from shardwise.ir.errors import FileFormatError, MismatchError
from shardwise.runtime.program import Program

PLACE = "place.json"
"""File beside the tensors: step, epoch, position and what the run was."""


def save_checkpoint(
    folder: Path, program: Program, optimizer: torch.optim.Optimizer, place: dict[str, Any]
) -> None:
    """Write a checkpoint; a collective of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    dcp.save(_state(program, optimizer), checkpoint_id=folder, no_dist=not dist.is_initialized())
    if program.router.rank == 0:
        temporary = folder / f"{PLACE}.part"
        temporary.write_text(json.dumps(place, indent=2))
        temporary.replace(folder / PLACE)


def load_checkpoint(
    folder: Path, program: Program, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Read a checkpoint into a program and its optimizer; returns the place that was saved.

    A collective of all ranks. Raises FileFormatError where the folder holds no complete
    checkpoint and MismatchError where it is of another model.
    """
    try:
        place: dict[str, Any] = json.loads((folder / PLACE).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise FileFormatError(
            f"{folder}: no complete checkpoint there ({PLACE} is missing or damaged); give the "
            "folder of a saved step"
        ) from error
    state = _state(program, optimizer)
    reader = dcp.FileSystemReader(folder)
    known = set(reader.read_metadata().state_dict_metadata)
    wanted = {f"master.{name}" for name in state["master"]}
    missing = sorted(wanted - known)
    if missing:
        raise MismatchError(
            f"{folder}: the checkpoint lacks {len(missing)} parameters of this model, first "
            f"{missing[0].removeprefix('master.')}; load it into the model that it was saved from"
        )
    dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    for name, parameter in program.named_parameters():
        for key, value in state["optimizer"].get(name, {}).items():
            optimizer.state[parameter][key] = value
    program.refresh()
    return place


def _state(program: Program, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """{"master": {name: tensor}, "optimizer": {name: {state: tensor}}}; tensors are the live
    ones."""
    parameters = dict(program.named_parameters())
    for parameter in parameters.values():
        if parameter.requires_grad and not optimizer.state[parameter]:
            optimizer.state[parameter].update(_fresh_state(optimizer, parameter))
    return {
        "master": {name: parameter.data for name, parameter in parameters.items()},
        "optimizer": {
            name: dict(optimizer.state[parameter])
            for name, parameter in parameters.items()
            if optimizer.state[parameter]
        },
    }


def _fresh_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """The state of a parameter that has not been stepped yet, as AdamW begins."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(parameter.data),
            "exp_avg_sq": torch.zeros_like(parameter.data),
        }
    return {}
