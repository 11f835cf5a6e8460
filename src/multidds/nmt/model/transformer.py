"""The paper's transformer: pre-norm with ScaleNorm, tied decoder embeddings, sinusoidal positions (appendix A.2).

Owns parameters and the forward pass up to the loss; the arithmetic that a CPU spends its time on is in kernels.py.
Sentences are packed: rows of tokens without padding, which only attention spreads out. Shapes are in trailing comments:
B sentences, D width, H heads; P source and R target tokens in all, S and T in the longest sentence; N and L on either
side; V target vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ..batches.batch import Batch, Rows
from ..config.config import Config
from . import kernels

EPSILON = 1e-6  # of the norms; the exported model has the same


class ScaleNorm(nn.Module):
    """g * x / |x|, one learned length (Nguyen and Salazar, 2019): RMSNorm with the constant weight g / sqrt(D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.tensor(math.sqrt(width)))

    def forward(self, x: Tensor) -> Tensor:  # [..., D]
        return kernels.scale_norm(x, self.g, EPSILON)


def norm(kind: str, width: int) -> nn.Module:
    return ScaleNorm(width) if kind == "scale" else nn.LayerNorm(width, eps=EPSILON)


class Layout:
    """The map from the packed rows of one side to padded heads for attention, and back.

    One gather each way, straight into the order that batched matrix products want.
    """

    def __init__(self, rows: Rows, heads: int, like: Tensor, parts: tuple[int, ...]) -> None:
        """parts: the numbers of projections whose rows will be spread together."""
        self.rows, self.heads = rows, heads
        padded = like.new_zeros(rows.sentences * rows.longest).index_fill_(0, rows.padding, -math.inf)
        self.no_padding = padded.view(-1, 1, rows.longest).repeat_interleave(heads, 0)  # [B * H, 1, L]
        self.no_future = like.new_full((1, rows.longest, rows.longest), -math.inf).triu_(1)
        self._maps = {count: self._map(count) for count in {1, *parts}}
        self._holes = self._padded(rows.padding, 1).flatten()

    def spread(self, x: Tensor, parts: int) -> Tensor:  # [N, C * D] -> [C, B * H, L, D / H]; padding holds anything
        packed, padded = self._maps[parts]
        width = x.shape[1] // (parts * self.heads)
        return kernels.moved(x.view(-1, width), packed, padded).view(parts, -1, self.rows.longest, width)

    def collect(self, h: Tensor) -> Tensor:  # [B * H, L, D / H] -> [N, D]
        packed, padded = self._maps[1]
        return kernels.moved(h.flatten(0, 1), padded, packed, self._holes).view(len(self.rows.places), -1)

    def _map(self, parts: int) -> tuple[Tensor, Tensor]:
        """Returns for each row of [C, B, H, L] its row of [N, C, H], and the reverse."""
        part, head = self._counts(parts)
        tokens = self.rows.tokens.view(1, -1, 1, self.rows.longest)
        packed = (tokens * parts + part[..., None, None]) * self.heads + head[:, None]  # [C, B, H, L]
        return packed.flatten(), self._padded(self.rows.places, parts).flatten()

    def _padded(self, places: Tensor, parts: int) -> Tensor:
        """Returns the rows of [C, B, H, L] that belong to places in [B, L]. [places, C, H]"""
        part, head = self._counts(parts)
        longest = self.rows.longest
        sentence, position = places // longest, places % longest
        row = (part * self.rows.sentences + sentence[:, None, None]) * self.heads + head
        return row * longest + position[:, None, None]

    def _counts(self, parts: int) -> tuple[Tensor, Tensor]:
        device = self.rows.places.device
        return torch.arange(parts, device=device)[:, None], torch.arange(self.heads, device=device)  # [C, 1], [H]


class Attention(nn.Module):
    """Multi-head attention, to itself (one fused projection) or to the encoder (query apart)."""

    def __init__(self, width: int, dropout: float, to_encoder: bool) -> None:
        super().__init__()
        self.dropout = dropout
        if to_encoder:
            self.query = nn.Linear(width, width)
            self.key_value = nn.Linear(width, 2 * width)
        else:
            self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, own: Layout, causal: bool) -> Tensor:  # [N, D]
        bias = own.no_future if causal else own.no_padding
        return self._attended(own.spread(self.query_key_value(x), 3), None, own, bias)

    def to_encoder(self, x: Tensor, own: Layout, memory: Tensor, its: Layout) -> Tensor:  # [R, D], [P, D] -> [R, D]
        query, key_value = own.spread(self.query(x), 1), its.spread(self.key_value(memory), 2)
        return self._attended(query, key_value, own, its.no_padding)

    def _attended(self, first: Tensor, memory: Tensor | None, own: Layout, bias: Tensor) -> Tensor:
        h = kernels.attend(first, memory, bias, self.dropout if self.training else 0.0)  # [B * H, L, D / H]
        result: Tensor = self.out(own.collect(h))
        return result


class Layer(nn.Module):
    """Self-attention, attention to the encoder in the decoder, feed-forward; each as x + dropout(f(norm(x)))."""

    def __init__(self, settings: dict[str, Any], decoder: bool) -> None:
        super().__init__()
        width, kind = settings["width"], settings["norm"]
        attention = (width, settings["attention_dropout"])
        self.dropout, self.activation_dropout = settings["dropout"], settings["activation_dropout"]
        self.self_norm, self.self_attention = norm(kind, width), Attention(*attention, to_encoder=False)
        self.decoder = decoder
        if decoder:
            self.cross_norm, self.cross_attention = norm(kind, width), Attention(*attention, to_encoder=True)
        self.feed_norm = norm(kind, width)
        self.inner, self.outer = nn.Linear(width, settings["inner"]), nn.Linear(settings["inner"], width)

    def forward(self, x: Tensor, own: Layout, memory: Tensor | None = None, its: Layout | None = None) -> Tensor:
        dropout, activation_dropout = (self.dropout, self.activation_dropout) if self.training else (0.0, 0.0)
        x = kernels.add_dropped(x, self.self_attention(self.self_norm(x), own, causal=self.decoder), dropout)
        if memory is not None and its is not None:
            h = self.cross_attention.to_encoder(self.cross_norm(x), own, memory, its)
            x = kernels.add_dropped(x, h, dropout)
        h = kernels.relu_dropped(self.inner(self.feed_norm(x)), activation_dropout)
        return kernels.add_dropped(x, self.outer(h), dropout)


class Transformer(nn.Module):
    """The encoder and decoder: a batch in, its loss out."""

    positions: Tensor

    def __init__(self, source_tokens: int, target_tokens: int, longest: int, **settings: Any) -> None:
        """
        source_tokens, target_tokens: the sizes of the vocabularies.
        longest: the largest number of positions.
        settings: the keys of [model].
        """
        super().__init__()
        width = settings["width"]
        self.width, self.heads, self.dropout = width, settings["heads"], settings["dropout"]
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

    def compile_layers(self, **options: Any) -> None:
        """Compiles the layers, each kind once for all shapes. The loss, in chunks, is not compiled."""
        for layer in [*self.encoder, *self.decoder]:
            layer.compile(dynamic=True, **options)

    def forward(self, batch: Batch, smoothing: float, each: bool = False) -> Tensor:
        """Returns the label-smoothed cross entropy in nats, summed over the target tokens [], or of each [R]."""
        of = kernels.token_losses if each else kernels.summed_cross_entropy
        return of(self.hidden(batch), self.target_embedding.weight, batch.target_out, smoothing)

    def token_scores(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:  # [], [R], [R]
        """Returns the loss without smoothing, and of each correct token its log-probability and whether it is first."""
        return kernels.token_scores(self.hidden(batch), self.target_embedding.weight, batch.target_out)

    def logits(self, batch: Batch) -> Tensor:  # [R, V]
        return F.linear(self.hidden(batch), self.target_embedding.weight)

    def hidden(self, batch: Batch) -> Tensor:  # [R, D]
        weight = self.target_embedding.weight
        source = Layout(batch.source_rows, self.heads, weight, parts=(2, 3))  # keys and values; with queries
        target = Layout(batch.target_rows, self.heads, weight, parts=(1, 3))
        memory = self._embedded(self.source_embedding, batch.source, batch.source_rows)
        for layer in self.encoder:
            memory = layer(memory, source)
        memory = self.encoder_norm(memory)  # [P, D]
        x = self._embedded(self.target_embedding, batch.target_in, batch.target_rows)
        for layer in self.decoder:
            x = layer(x, target, memory, source)
        result: Tensor = self.decoder_norm(x)
        return result

    def _embedded(self, embedding: nn.Embedding, tokens: Tensor, rows: Rows) -> Tensor:  # [N] -> [N, D]
        x = torch.add(self.positions[rows.positions], embedding(tokens), alpha=math.sqrt(self.width))
        return kernels.dropped(x, self.dropout if self.training else 0.0)


def sinusoids(count: int, width: int) -> Tensor:  # [count, width]
    """Returns for position p sin and then cos of p / 10000^(i / (width / 2 - 1)), i = 0 .. width / 2 - 1."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10000.0) / max(half - 1, 1)))
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def make_model(config: Config, vocabulary: Mapping[str, Sequence[str]]) -> Transformer:
    """Returns the model that a config describes, for the tokens of both sides."""
    longest = config.data.max_length + 2  # a tag and </s>
    return Transformer(len(vocabulary["source"]), len(vocabulary["target"]), longest, **config.model.model_dump())
