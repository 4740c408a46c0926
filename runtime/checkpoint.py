"""Checkpoints: masters, optimizer state and the place in the run, under any plan and world size.

Masters and optimizer state are DTensors under the model's own names, saved and loaded by
torch.distributed.checkpoint, which reshards them to whatever layout the loading plan has. What is
read goes straight into the tensors of the program and of its optimizer.

`place.json` is removed first and written last, so a folder that has it is complete.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from shardwise.ir.errors import FileFormatError, MismatchError
from shardwise.runtime.program import Program

PLACE = "place.json"
"""File beside the tensors: step, and what the run was."""
_MASTER = "master"
_OPTIMIZER = "optimizer"

State = dict[str, dict[str, Any]]


def save_checkpoint(
    folder: Path, program: Program, optimizer: torch.optim.Optimizer, place: Mapping[str, Any]
) -> None:
    """Write a checkpoint; a collective of all ranks.

    Raises OSError, or FileFormatError where a rank could not write.
    """
    leader = program.router.rank == 0
    folder.mkdir(parents=True, exist_ok=True)
    if leader:
        (folder / PLACE).unlink(missing_ok=True)
    with _told(folder, "written"):
        dcp_save(
            _state(program, optimizer), checkpoint_id=folder, no_dist=not dist.is_initialized()
        )
    if leader:
        sections = {
            parameter.name: str(parameter.section)
            for parameter in program.executor.graph.parameters
            if parameter.section is not None
        }
        temporary = folder / f"{PLACE}.part"
        temporary.write_text(json.dumps({**place, "sections": sections}, indent=2) + "\n")
        temporary.replace(folder / PLACE)


def read_place(folder: Path) -> dict[str, Any]:
    """What `place.json` says; FileFormatError where the folder holds no complete checkpoint."""
    try:
        place = json.loads((folder / PLACE).read_text())
    except (OSError, ValueError):
        place = None
    if not isinstance(place, dict):
        raise FileFormatError(
            f"{folder}: no complete checkpoint there ({PLACE} is missing or damaged); give the "
            "folder of a saved step"
        )
    return place


def load_checkpoint(folder: Path, program: Program, optimizer: torch.optim.Optimizer) -> None:
    """Read a checkpoint into a program's masters and its optimizer; a collective of all ranks.

    Raises FileFormatError where the folder holds no complete checkpoint and MismatchError where it
    lacks a tensor of this model or optimizer, or has one of another shape; nothing is changed then.
    """
    state = _state(program, optimizer)
    saved = _saved_tensors(folder)
    for group, named in state.items():
        for name, value in named.items():
            for key, tensor in [("", value)] if group == _MASTER else value.items():
                _check_saved(folder, saved, ".".join(filter(None, (group, name, key))), tensor)
    with _told(folder, "read"):
        dcp_load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    program.refresh()


def read_masters(folder: Path) -> dict[str, torch.Tensor]:
    """The whole masters of a checkpoint by name, in this process alone."""
    read_place(folder)
    prefix = f"{_MASTER}."
    state = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in _saved_tensors(folder).items()
        if name.startswith(prefix)
    }
    with _told(folder, "read"):
        dcp_load(state, checkpoint_id=folder, no_dist=True)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _state(program: Program, optimizer: torch.optim.Optimizer) -> State:
    """{"master": {name: tensor}, "optimizer": {name: {key: tensor}}}: the tensors in use.

    A parameter that was not stepped yet gets the state that its optimizer begins with.
    """
    masters = dict(program.named_parameters())
    state: State = {_MASTER: {name: master.data for name, master in masters.items()}}
    state[_OPTIMIZER] = {}
    for name, master in masters.items():
        if not master.requires_grad:
            continue
        tensors = optimizer.state.get(master) or _fresh_state(optimizer, master)
        if tensors:
            optimizer.state[master] = tensors
            state[_OPTIMIZER][name] = dict(tensors)
    return state


def _fresh_state(optimizer: torch.optim.Optimizer, master: nn.Parameter) -> dict[str, Any]:
    """The state of a parameter before its first step, as AdamW begins; SGD has none."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(master.data),
            "exp_avg_sq": torch.zeros_like(master.data),
        }
    return {}


def _saved_tensors(folder: Path) -> dict[str, TensorStorageMetadata]:
    try:
        found = FileSystemReader(folder).read_metadata().state_dict_metadata
    except Exception as error:  # a pickle: a damaged one may raise anything
        raise FileFormatError(
            f"{folder}: no readable .metadata of a checkpoint; give the folder of a saved step"
        ) from error
    return {name: one for name, one in found.items() if isinstance(one, TensorStorageMetadata)}


def _check_saved(
    folder: Path, saved: Mapping[str, TensorStorageMetadata], name: str, tensor: torch.Tensor
) -> None:
    if name not in saved:
        raise MismatchError(
            f"{folder}: the checkpoint lacks {name}; load it with the model and the optimizer of "
            "the job that saved it"
        )
    shape = tuple(tensor.shape)  # of a DTensor: the global one
    if tuple(saved[name].size) != shape:
        raise MismatchError(
            f"{folder}: {name} was saved with shape {tuple(saved[name].size)} and this model has "
            f"{shape}; load it with the model of the job that saved it"
        )


@contextmanager
def _told(folder: Path, done: str) -> Iterator[None]:
    """Turn torch's exception, of several lines and no Exception, into one of ours."""
    try:
        with warnings.catch_warnings():
            for known in ("torch.distributed is disabled", "Detected an existing checkpoint"):
                warnings.filterwarnings("ignore", message=known)
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        cause = " ".join(f"{type(first).__name__}: {first}".split())[:300]
        raise FileFormatError(
            f"{folder}: cannot be {done} ({cause}); check the folder and the disk"
        ) from error
