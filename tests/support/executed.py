"""Counts what a rank really computes and keeps, with no knowledge of what was stated.

`Watch` stands below autograd: it sees every kernel, of forward, backward and recomputation alike,
and which storages are still alive. `counted` stands at the operators that a program was emitted as.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.ir.argument import Ref
from shardwise.ir.flops import flops, is_product
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call
from shardwise.ir.tensor import TensorSpec
from shardwise.runtime.redistribute import Redistribution


def spec_of(tensor):
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def operator_of(kind, args, kwargs, results):
    """(operator, operand specs) of a call on real tensors."""
    specs = []

    def plain(value):
        if isinstance(value, torch.Tensor):
            specs.append(spec_of(value))
            return Ref(f"t{len(specs)}")
        if isinstance(value, list | tuple):
            return tuple(plain(item) for item in value)
        return value if isinstance(value, int | float | bool | None) else str(value)

    results = results if isinstance(results, list | tuple) else (results,)
    outputs = tuple(spec_of(r) for r in results if isinstance(r, torch.Tensor))
    plain_args = tuple(plain(value) for value in args)
    plain_kwargs = tuple((key, plain(value)) for key, value in kwargs.items())
    return Operator("y", kind, plain_args, plain_kwargs, outputs), tuple(specs)


# kernels


def _product(args, result):
    return 2 * result.numel() * args[-2].shape[-1]


def _attention(args, result):
    """q k' and p v, where causal of the half below the diagonal."""
    query, key, value, _, causal = (*args, 0.0, False)[:5]
    pairs = query.numel() // query.shape[-1] * key.shape[2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1]) // (2 if causal else 1)


def _attention_backward(args, result):
    """q k' again, do v', ds k, ds' q and p' do."""
    _, query, key, value, _, _, _, causal = args[:8]
    pairs = query.numel() // query.shape[-1] * key.shape[2]
    one = 3 * query.shape[-1] + 2 * value.shape[-1]
    return 2 * pairs * one // (2 if causal else 1)


def _convolution(args, result):
    return 2 * result.numel() * args[1][0].numel()


def _convolution_backward(args, result):
    """One product for the input's gradient and one for the filters'."""
    gradient, _, weight = args[:3]
    return 2 * gradient.numel() * weight[0].numel() * sum(args[10][:2])


KERNELS = {
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.addmm.default": _product,
    "aten.baddbmm.default": _product,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
"""Kernels that compute products -> FLOPs of (args, first result), written apart from ir/flops."""


class Watch(TorchDispatchMode):
    """Product FLOPs of a thread's kernels since `take`, and the storages that it has seen."""

    def __init__(self, communicator):
        super().__init__()
        self.is_meeting = False
        self._execute = communicator._execute
        communicator._execute = self._meet
        self.product_flops = 0
        self.storages: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self.is_meeting:
            self._note(result)
        kind = str(func)
        if kind in KERNELS:
            first = result[0] if isinstance(result, list | tuple) else result
            self.product_flops += KERNELS[kind](args, first)
        return result

    def _meet(self, call, x):
        """A collective touches tensors of other ranks; only what it returns is this rank's."""
        self.is_meeting = True
        result = self._execute(call, x)
        self.is_meeting = False
        self._note(result)
        return result

    def _note(self, value):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            self.storages[storage._cdata] = StorageWeakRef(storage)
        elif isinstance(value, list | tuple):
            for item in value:
                self._note(item)

    def take(self):
        """Product FLOPs since the last `take`."""
        count, self.product_flops = self.product_flops, 0
        return count

    def alive(self, staying: Iterable[torch.Tensor] = ()):
        """Bytes of the storages made here that still live; `staying` do not count. No garbage is
        collected first: what a forward does not need must go by itself."""
        stay = {tensor.untyped_storage()._cdata for tensor in staying}
        total = {}
        for at, weak in self.storages.items():
            if not weak.expired() and at not in stay:
                storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
                total[storage.data_ptr()] = storage.nbytes()
        return sum(total.values())


# operators


@dataclass
class Operators:
    """FLOPs of the operators that emitted units call, at the shapes that they are called with."""

    flops: int = 0
    product_flops: int = 0

    def take(self):
        """(FLOPs, those of products and attention) since the last `take`."""
        counts = self.flops, self.product_flops
        self.flops = self.product_flops = 0
        return counts

    def note(self, kind, args, kwargs, result):
        operator, specs = operator_of(kind, args, kwargs, result)
        one = int(flops(operator, specs))
        self.flops += one
        if is_product(kind) or "attention" in kind:
            self.product_flops += one


class _Counting(fx.Interpreter):
    """Runs an emitted unit node by node and notes each operator; library calls as what they
    replace."""

    def __init__(self, module, operators, replaced):
        super().__init__(module)
        self.operators, self.replaced = operators, replaced

    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        if isinstance(target, torch._ops.OpOverload):
            self.operators.note(str(target), args, kwargs, result)
        return result

    def call_module(self, target, args, kwargs):
        result = super().call_module(target, args, kwargs)
        operator = self.replaced.get(target)
        if operator is not None:
            rest = operator.args[len(args) :]
            self.operators.note(operator.kind, (*args, *rest), dict(operator.kwargs), result)
        return result


def counting(executor, operators):
    """Let the executor's units note the operators that they call."""
    executor.buckets = tuple(
        replace(
            bucket,
            units=tuple(
                replace(emitted, module=_Noted(emitted.module, _library_calls(unit), operators))
                for emitted, unit in zip(bucket.units, bucket.local.units, strict=True)
            ),
        )
        for bucket in executor.buckets
    )


class _Noted:
    """In place of an emitted unit's module."""

    def __init__(self, module, calls, operators):
        targets = [
            node.target
            for node in module.graph.nodes
            if node.op == "call_module"
            and not isinstance(module.get_submodule(node.target), Redistribution)
        ]
        self.module, self.operators = module, operators
        self.replaced = dict(zip(targets, calls, strict=True))

    def __call__(self, *args):
        return _Counting(self.module, self.operators, self.replaced).run(*args)


def _library_calls(unit):
    return [step.operator for step in unit.steps if isinstance(step, Call) and step.library]
