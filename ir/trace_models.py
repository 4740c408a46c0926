"""Models by a short text: `hf:config.json` and `module:function`.

`load_model(spec)` builds on the meta device: shapes without weights, which is all that planning
needs. `load_model(spec, weights="random", seed=0)` builds real weights for training.
"""

import importlib
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from shardwise.ir.dtype import check_dtype
from shardwise.ir.errors import FileFormatError, InvalidValueError, ShardwiseError
from shardwise.ir.hugging_face_config import read_config

_FORM = "give hf:PATH (a Hugging Face config.json) or module:FUNCTION (it returns a module)"


def load_model(
    spec: str,
    *,
    weights: Literal["none", "random"] = "none",
    seed: int = 0,
    dtype: str = "float32",
    train: bool = True,
) -> nn.Module:
    """The model that `spec` names, in training mode unless `train=False`.

    `hf:path.json`: the class in `architectures`, else a causal language model, with SDPA attention
    and no cache. `package.module:function`: what the function returns. Raises InvalidValueError for
    another spec, FileFormatError for a file that is no such config.
    """
    kind, _, rest = spec.partition(":")
    if not rest or weights not in ("none", "random"):
        raise InvalidValueError(
            f'model {spec!r} with weights {weights!r}: {_FORM}; weights are "none" or "random"'
        )
    check_dtype(dtype)
    if weights == "random":
        torch.manual_seed(seed)
    with torch.device("meta" if weights == "none" else "cpu"):
        model = _from_config(Path(rest), dtype) if kind == "hf" else _from_function(kind, rest)
    return model.train(train)


def _from_config(path: Path, dtype: str) -> nn.Module:
    values: dict[str, Any] = read_config(path)
    if "model_type" not in values:
        raise FileFormatError(
            f'{path}: no model_type: a Hugging Face config.json names one, e.g. "llama"'
        )
    try:
        import transformers
    except ImportError:
        raise InvalidValueError("hf: models need transformers; install shardwise[hf]") from None
    names = values.get("architectures") or []
    try:
        config = transformers.AutoConfig.for_model(**values)
        builder: Any = getattr(transformers, names[0], None) if names else None
        settings = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        if builder is None:
            builder = transformers.AutoModelForCausalLM
            model = builder.from_config(config, **settings)
        else:
            model = builder._from_config(config, **settings)
    except Exception as error:  # whatever the library raises for a config that it rejects
        reason = " ".join(str(error).split())
        raise FileFormatError(f"{path}: transformers cannot build it: {reason[:300]}") from error
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    assert isinstance(model, nn.Module)
    return model


def _from_function(module: str, function: str) -> nn.Module:
    try:
        builder = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidValueError(f"model {module}:{function}: {error}; {_FORM}") from error
    try:
        model = builder()
    except ShardwiseError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InvalidValueError(
            f"model {module}:{function} raised {type(error).__name__}: {reason[:300]}; give a "
            "function without arguments that returns an nn.Module"
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidValueError(
            f"model {module}:{function} returned {type(model).__name__}: return an nn.Module"
        )
    return model
