"""What a publication says of the network between nodes: the rate of a GPU, the kind of fabric.

    inter_link_rate("RoCE, 4 x 100 Gb/s per node", 8)       6.25e9 bytes/s, one direction
    inter_link_rate("InfiniBand, 800 Gb/s per node", 8)     12.5e9
    inter_link_rate("RDMA 400 Gb/s per GPU", 8)             50e9
    inter_link_rate("not stated", 8)                        None

A generation alone ("InfiniBand HDR") is no rate, since the number of cards is not said. What
else a text says (oversubscription between pods) is not read.
"""

import re
from typing import Final

_COUNT: Final = r"(?:(?P<count>\d{1,6})\s*[x*]\s*)?(?:(?:EDR|HDR|NDR|XDR)\s+)?"
_RATE: Final = re.compile(
    _COUNT + r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>Gb|Gbit|GB|Tb|Tbit|TB)(?:/s|ps)"
    r"(?:\s+[A-Za-z-]+){0,3}?\s+per\s+(?P<per>GPU|node)\b"
)
_BYTES: Final = {
    "Gb": 1e9 / 8,
    "Gbit": 1e9 / 8,
    "GB": 1e9,
    "Tb": 1e12 / 8,
    "Tbit": 1e12 / 8,
    "TB": 1e12,
}
_KINDS: Final = (
    (r"infiniband|\bib\b|\b[ehnx]dr\b", "infiniband"),
    (r"roce", "roce"),
    (r"\befa\b", "efa"),
    (r"omni-?path|\bopa\b", "omni_path"),
    (r"slingshot", "slingshot"),
    (r"ethernet|\btcp\b", "ethernet"),
)
"""Kinds of `fabric_kinds.FABRIC_KINDS` by the words that name them."""


def inter_link_rate(text: str | None, gpus_per_node: int | None) -> float | None:
    """Bytes per second and direction that one GPU has of the network between nodes.

    None if the text states no rate, or one of a node whose number of GPUs is unknown.
    """
    found = _RATE.search(text or "")
    if found is None:
        return None
    rate = float(found["rate"]) * _BYTES[found["unit"]] * int(found["count"] or 1)
    if found["per"] == "GPU":
        return rate
    return rate / gpus_per_node if gpus_per_node else None


def inter_link_kind(text: str | None) -> str | None:
    """The kind of fabric that the text names (`fabric_kinds.FABRIC_KINDS`), None if none.

    "RDMA" alone names none: it may be InfiniBand or RoCE.
    """
    for pattern, kind in _KINDS:
        if re.search(pattern, text or "", re.IGNORECASE):
            return kind
    return None


def is_single_node(text: str | None) -> bool:
    """Whether the text says that there is nothing between nodes ("none (single node)")."""
    return bool(re.match(r"none\b", text or "", re.IGNORECASE))
