"""From a Hugging Face config.json to a DecoderShape: sizes only, no library and no weights.

Families with the operators of `ir/decoder_graph.py` are known; another one is an error, since its
price would be that of another model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import FileFormatError, UnsupportedError
from shardwise.ir.hugging_face_config import read_config
from shardwise.ir.scanner import shown

_LLAMA_KEYS: Final[Mapping[str, str]] = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip
_GPT2_KEYS: Final[Mapping[str, str]] = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner",
    "vocabulary": "vocab_size", "positions": "n_positions",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Family:
    """Where the configs of a family keep what a DecoderShape has."""

    keys: Mapping[str, str]
    gated: bool
    """Gated feed-forward part, rotary positions and RMSNorm; else as GPT-2."""
    tied: bool
    """Where the config does not say it."""
    bias: tuple[str, ...] = ()
    """Keys that say together that linear layers have biases; none: they have."""
    dropout: tuple[str, ...] = ()


_GATED: Final = _Family(_LLAMA_KEYS, gated=True, tied=False, bias=("attention_bias", "mlp_bias"))
_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _GATED,
    "mistral": _GATED,
    "qwen2": _GATED,
    "gpt2": _Family(
        _GPT2_KEYS, gated=False, tied=True, dropout=("resid_pdrop", "embd_pdrop", "attn_pdrop")
    ),
}
_GPT2_DROPOUT: Final = 0.1


def decoder_of_config(path: str | Path) -> DecoderShape:
    """The decoder that a config.json describes, attention fused.

    Raises FileFormatError for a file that is no such config or lacks a size, UnsupportedError for
    a family or variant whose operators are not known, InvalidValueError for impossible sizes.
    """
    place = Path(path)
    values = read_config(place)
    name = values.get("model_type")
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedError(
            f"{place}: model_type {shown(name)} is not priced from its config; it is known for "
            f"{', '.join(_FAMILIES)}"
        )
    sizes = {field: _size(place, values, key) for field, key in family.keys.items()}
    hidden, heads = _needed(place, sizes, family, "hidden"), _needed(place, sizes, family, "heads")
    ffn = sizes["ffn"] if family.gated else sizes["ffn"] or 4 * hidden
    _check_variant(place, values, hidden, heads)
    if ffn is None:
        raise _lacks(place, family.keys["ffn"])
    return DecoderShape(
        _needed(place, sizes, family, "layers"),
        hidden,
        heads,
        sizes.get("kv_heads") or heads,
        ffn,
        family.gated,
        _needed(place, sizes, family, "vocabulary"),
        dropout=any(_rate(place, values, key) > 0 for key in family.dropout),
        rotary=family.gated,
        positions=0 if family.gated else _needed(place, sizes, family, "positions"),
        rms_norm=family.gated,
        bias=all(values.get(key) is True for key in family.bias),
        tied=bool(values.get("tie_word_embeddings", family.tied)),
    )


def _size(path: Path, values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise FileFormatError(f"{path}: {key} is {shown(value)}; give an int of 1 or more")
    return value


def _rate(path: Path, values: Mapping[str, object], key: str) -> float:
    value = values.get(key, _GPT2_DROPOUT)
    if type(value) not in (int, float):
        raise FileFormatError(f"{path}: {key} is {shown(value)}; give a number")
    assert isinstance(value, int | float)
    return value


def _needed(path: Path, sizes: Mapping[str, int | None], family: _Family, field: str) -> int:
    size = sizes[field]
    if size is None:
        raise _lacks(path, family.keys[field])
    return size


def _lacks(path: Path, key: str) -> FileFormatError:
    return FileFormatError(f"{path}: {key} is missing; add it")


def _check_variant(path: Path, values: Mapping[str, object], hidden: int, heads: int) -> None:
    """Refuse what the operators of a DecoderShape do not do."""
    head = values.get("head_dim")
    if head is not None and head * heads != hidden:  # type: ignore[operator]
        raise UnsupportedError(
            f"{path}: {heads} heads of {shown(head)} are not hidden_size {hidden}; decoders with "
            "wider or narrower heads are not priced from their config"
        )
    act = values.get("hidden_act", "silu")
    if values.get("model_type") != "gpt2" and act not in ("silu", "swish"):
        raise UnsupportedError(f"{path}: hidden_act {shown(act)} is not priced; silu is")
