"""The paper's transformer: pre-norm with ScaleNorm, tied decoder embeddings, sinusoidal positions (appendix A.2).

Owns parameters, the forward pass and the label-smoothed loss. Shapes are in trailing comments: B sentences,
S source and T target tokens, D width, H heads, R real (not padded) target tokens, V target vocabulary.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .batches import Batch

EPSILON = 1e-6  # of the norms; the exported model has the same


class ScaleNorm(nn.Module):
    """g * x / |x|, one learned length (Nguyen and Salazar, 2019): RMSNorm with the constant weight g / sqrt(D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.g = nn.Parameter(torch.tensor(math.sqrt(width)))

    def forward(self, x: Tensor) -> Tensor:  # [..., D]
        return F.rms_norm(x, (self.width,), eps=EPSILON) * (self.g / math.sqrt(self.width))


def norm(kind: str, width: int) -> nn.Module:
    return ScaleNorm(width) if kind == "scale" else nn.LayerNorm(width, eps=EPSILON)


class Attention(nn.Module):
    """Multi-head attention, to itself (one fused projection) or to the encoder (query apart)."""

    def __init__(self, width: int, heads: int, dropout: float, to_encoder: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        if to_encoder:
            self.query = nn.Linear(width, width)
            self.key_value = nn.Linear(width, 2 * width)
        else:
            self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        if memory is None:
            q, k, v = self.query_key_value(x).chunk(3, dim=-1)  # [B, T, D] each
        else:
            q = self.query(x)
            k, v = self.key_value(memory).chunk(2, dim=-1)  # [B, S, D] each
        q, k, v = (self._split(t) for t in (q, k, v))  # [B, H, T or S, D / H]
        dropout = self.dropout if self.training else 0.0
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        result: Tensor = self.out(h.transpose(1, 2).flatten(2))  # [B, T, D]
        return result

    def _split(self, t: Tensor) -> Tensor:
        return t.view(*t.shape[:-1], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Self-attention, attention to the encoder in the decoder, feed-forward; each as x + dropout(f(norm(x)))."""

    def __init__(self, settings: dict[str, Any], decoder: bool) -> None:
        super().__init__()
        width, kind = settings["width"], settings["norm"]
        attention = (width, settings["heads"], settings["attention_dropout"])
        self.dropout, self.activation_dropout = settings["dropout"], settings["activation_dropout"]
        self.self_norm, self.self_attention = norm(kind, width), Attention(*attention, to_encoder=False)
        self.decoder = decoder
        if decoder:
            self.cross_norm, self.cross_attention = norm(kind, width), Attention(*attention, to_encoder=True)
        self.feed_norm = norm(kind, width)
        self.inner, self.outer = nn.Linear(width, settings["inner"]), nn.Linear(settings["inner"], width)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        if self.decoder:
            x = x + self._dropped(self.self_attention(self.self_norm(x), causal=True))
            x = x + self._dropped(self.cross_attention(self.cross_norm(x), memory, mask))
        else:
            x = x + self._dropped(self.self_attention(self.self_norm(x), mask=mask))
        h = F.dropout(F.relu(self.inner(self.feed_norm(x))), self.activation_dropout, self.training)
        return x + self._dropped(self.outer(h))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """Source and target token numbers in, hidden states of the target positions out; `loss` goes on from there."""

    positions: Tensor

    def __init__(self, source_tokens: int, target_tokens: int, longest: int, **settings: Any) -> None:
        """settings: encoder_layers, decoder_layers, width, inner, heads, dropout, attention_dropout,
        activation_dropout, norm. longest: the largest number of positions."""
        super().__init__()
        width = settings["width"]
        self.width, self.dropout = width, settings["dropout"]
        self.source_embedding = nn.Embedding(source_tokens, width)
        self.target_embedding = nn.Embedding(target_tokens, width)  # also the output projection
        self.encoder = nn.ModuleList(Layer(settings, decoder=False) for _ in range(settings["encoder_layers"]))
        self.encoder_norm = norm(settings["norm"], width)
        self.decoder = nn.ModuleList(Layer(settings, decoder=True) for _ in range(settings["decoder_layers"]))
        self.decoder_norm = norm(settings["norm"], width)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        for name, parameter in self.named_parameters():
            if "embedding" in name:
                nn.init.normal_(parameter, std=width**-0.5)
            elif parameter.dim() == 2:
                # Queries, keys and values as fairseq initialises them, each part of a fused projection for itself.
                projection = name.split(".")[-2]
                parts = {"query_key_value": 3, "key_value": 2, "query": 1}.get(projection, 0)
                for part in parameter.detach().chunk(max(parts, 1)):
                    nn.init.xavier_uniform_(part, gain=2**-0.5 if parts else 1.0)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:  # [B, S], [B, 1, 1, S] -> [B, S, D]
        x = self._embedded(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, None, mask)
        result: Tensor = self.encoder_norm(x)
        return result

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:  # [B, T] -> [B, T, D]
        # Padding is at the end, where only padding can see it: the causal mask is enough.
        x = self._embedded(self.target_embedding, target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        result: Tensor = self.decoder_norm(x)
        return result

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the real target tokens. [R, V]"""
        mask = None if batch.source_mask is None else batch.source_mask[:, None, None, :]
        hidden = self.decode(batch.target_in, self.encode(batch.source, mask), mask)  # [B, T, D]
        rows = hidden.flatten(0, 1).index_select(0, batch.rows)  # [R, D]
        return F.linear(rows, self.target_embedding.weight)

    def _embedded(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.width) + self.positions[: tokens.shape[1]]
        return F.dropout(x, self.dropout, self.training)


def sinusoids(count: int, width: int) -> Tensor:
    """Position p: sin and then cos of p / 10000^(i / (width / 2 - 1)), i = 0 .. width / 2 - 1. [count, width]"""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10000.0) / max(half - 1, 1)))
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def summed_loss(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    """The label-smoothed cross entropy, summed over the real target tokens (natural logarithm)."""
    return F.cross_entropy(model(batch).float(), batch.target_out, label_smoothing=smoothing, reduction="sum")
