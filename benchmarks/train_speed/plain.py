"""The baseline: our model written in the obvious way, with padding and torch's own functions.

Tests compare its losses and gradients with those of the model. train_speed.py compares the speed.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from multidds.nmt.batches.batch import Batch, Rows
from multidds.nmt.model.transformer import EPSILON, Layer, Transformer


@dataclass(frozen=True)
class Padded:
    source: Tensor  # [B, S]
    source_mask: Tensor  # [B, 1, 1, S]
    target_in: Tensor  # [B, T]
    target_out: Tensor  # [R]
    places: Tensor  # [R]


def padded(batch: Batch) -> Padded:
    def spread(tokens: Tensor, rows: Rows) -> Tensor:
        table = torch.zeros(rows.sentences * rows.longest, dtype=torch.int64)
        return table.index_copy(0, rows.places, tokens).view(rows.sentences, rows.longest)

    source, target = batch.source_rows, batch.target_rows
    mask = spread(torch.ones_like(batch.source), source).bool()[:, None, None]
    return Padded(spread(batch.source, source), mask, spread(batch.target_in, target), batch.target_out, target.places)


def plain_loss(model: Transformer, batch: Padded, smoothing: float) -> Tensor:
    """What model(batch, smoothing) is, the way one writes it first: padded, and with torch's own functions."""
    memory = _embedded(model, model.source_embedding, batch.source)
    for layer in model.encoder:
        memory = _layer(layer, model.heads, memory, None, batch.source_mask)
    memory = _norm(model.encoder_norm, memory)
    x = _embedded(model, model.target_embedding, batch.target_in)
    for layer in model.decoder:
        x = _layer(layer, model.heads, x, memory, batch.source_mask)
    rows = _norm(model.decoder_norm, x).flatten(0, 1)[batch.places]  # [R, D]
    logits = F.linear(rows, model.target_embedding.weight)
    return F.cross_entropy(logits, batch.target_out, label_smoothing=smoothing, reduction="sum")


def _embedded(model: Transformer, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    x = embedding(tokens) * math.sqrt(model.width) + model.positions[: tokens.shape[1]]
    return F.dropout(x, model.dropout, model.training)


def _layer(layer: Layer, heads: int, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
    training = layer.training

    def attended(attention: nn.Module, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        rate = attention.dropout if training else 0.0
        h = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, **options)
        return F.dropout(attention.out(h.transpose(1, 2).flatten(2)), layer.dropout, training)

    h = _norm(layer.self_norm, x)
    options = {"attn_mask": mask} if memory is None else {"is_causal": True}
    x = x + attended(layer.self_attention, *layer.self_attention.query_key_value(h).chunk(3, -1), **options)
    if memory is not None:
        h, cross = _norm(layer.cross_norm, x), layer.cross_attention
        x = x + attended(cross, cross.query(h), *cross.key_value(memory).chunk(2, -1), attn_mask=mask)
    h = F.dropout(F.relu(layer.inner(_norm(layer.feed_norm, x))), layer.activation_dropout, training)
    return x + F.dropout(layer.outer(h), layer.dropout, training)


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        return norm(x)
    return F.rms_norm(x, x.shape[-1:], eps=EPSILON) * (norm.g / math.sqrt(x.shape[-1]))
