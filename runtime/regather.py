"""Free gathered weights after forward and gather them again in backward.

A compute copy whose lifetime is `use` must not stay alive between forward and backward, but
autograd saves it (a linear keeps its weight for the input's gradient). Under `Regather.saving`
a saved tensor that lies in such a copy is replaced by a note of the use and its place in the
copy; the first note that backward opens gathers the copy again, the others read it, and it is
dropped when the parameter's gradient has been accumulated. Recomputed units do not need this:
their forward, gathers included, runs again.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from shardwise.ir.program import Use


@dataclass(frozen=True)
class _Note:
    """Where a saved tensor lies: a use and the view of its copy."""

    use: Use
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Regather:
    """The short-lived copies of one run of one unit."""

    gather: Callable[[Use], torch.Tensor]
    """Makes the compute copy of a use (a collective)."""
    _places: dict[int, Use] = field(default_factory=dict)
    _again: dict[str, torch.Tensor] = field(default_factory=dict)

    def watch(self, use: Use, copy: torch.Tensor) -> None:
        """While `copy` lives, a saved tensor that lies in it is gathered again instead of kept."""
        storage = copy.untyped_storage()
        self._places[storage.data_ptr()] = use
        weakref.finalize(storage, self._places.pop, storage.data_ptr(), None)

    def drop(self, use: Use) -> None:
        """The gradient of `use` has been accumulated: its copy is not needed again."""
        self._again.pop(use.name, None)

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Context in which the unit's forward runs."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Note:
        use = self._places.get(tensor.untyped_storage().data_ptr())
        if use is None:
            return tensor
        return _Note(use, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, saved: torch.Tensor | _Note) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        if saved.use.name not in self._again:
            self._again[saved.use.name] = self.gather(saved.use)
        copy = self._again[saved.use.name]
        return copy.as_strided(saved.shape, saved.stride, saved.offset)
