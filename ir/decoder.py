"""DecoderShape: a decoder-only Transformer by its sizes, as runs are published.

`decoder_graph` makes the same operators that tracing makes of a module of these sizes, without
torch and in milliseconds, so that a run of which only the sizes are known is priced by the same
functions as a traced model. One layer stands for all: `Decoder.counts` says how often each unit
occurs.
"""

from dataclasses import dataclass
from enum import StrEnum

from shardwise.ir.errors import InvalidValueError


class AttentionKernel(StrEnum):
    """How the attention core is computed."""

    FLASH = "flash"
    """One fused kernel that never stores the scores (Dao et al. 2022)."""
    FLASH_1 = "flash1"
    """The first version of it, at about half the rate (Dao 2023, arXiv:2307.08691, abstract)."""
    FLASH_3 = "flash3"
    """Kernels for Hopper, FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) or cuDNN's."""
    UNFUSED = "unfused"
    """Two batched products with a softmax between them: 5 a s^2 b bytes are kept in half precision
    with dropout (Korthikanti et al. 2022, section 4)."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder-only Transformer and the variants of its operators.

    Raises InvalidValueError for sizes below 1 (`layers` may be 0), heads that do not divide
    `hidden`, or key and value heads that do not divide heads.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    """Inner width of the feed-forward part."""
    gated: bool
    """Two up-projections, silu of one times the other (SwiGLU); otherwise one, and gelu."""
    vocabulary: int
    attention: AttentionKernel = AttentionKernel.FLASH
    dropout: bool = False
    """After the embedding, the attention probabilities (unfused), and both sub-layers."""
    rotary: bool = False
    """Rotary positions; otherwise a learned table."""
    positions: int = 0
    """Rows of the table of learned positions; 0 where there is none."""
    rms_norm: bool = False
    """RMSNorm without bias; otherwise LayerNorm."""
    bias: bool = True
    """Linear layers have biases."""
    tied: bool = False
    """The output layer reads the embedding's table."""
    fused_loss: bool = False
    """The loss reads logits in the compute dtype and never stores them in float32."""
    fused_gate: bool = False
    """silu and the product with the other projection are one kernel, which keeps its operands."""
    composed: bool = False
    """RMSNorm and rotary positions are run operator by operator, in float32, as PyTorch does
    without a compiler; otherwise each is one kernel in the compute dtype."""

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "kv_heads", "ffn", "vocabulary"):
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise InvalidValueError(
                    f"{name} of a decoder is {size!r}; give an int of 1 or more"
                )
        if type(self.layers) is not int or self.layers < 0:
            raise InvalidValueError(f"layers of a decoder is {self.layers!r}; give an int >= 0")
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise InvalidValueError(
                f"hidden {self.hidden}, {self.heads} heads, {self.kv_heads} of keys and values: "
                "heads divide hidden, and their heads divide heads; correct the sizes"
            )

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        kv = self.kv_heads * self.head_size
        up = 2 if self.gated else 1
        matrices = 2 * self.hidden * (self.hidden + kv) + (up + 1) * self.hidden * self.ffn
        biases = (2 * self.hidden + 2 * kv + up * self.ffn + self.hidden) if self.bias else 0
        return matrices + biases + 2 * self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation."""
        return self.hidden if self.rms_norm else 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the tables at the entrance."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the exit that the entrance does not hold."""
        return self.norm_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return (
            self.embedding_parameters + self.layers * self.layer_parameters + self.head_parameters
        )
