"""Our training step against plain PyTorch, and Hugging Face's Marian where it is installed, on the same sentences.

    python benchmarks/train_speed.py --size small --threads 1

All take the same batches in turn, in one process: forward, label-smoothed loss, backward, clipping, Adam. Reported are
medians over the batches, ratios to plain PyTorch, and the fraction of the matrix-multiply peak that the arithmetic
of the real tokens (no padding) makes up. Text is made up, with lengths like TED's; batches are cut as in training.
"""

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from multidds.nmt import batches
from multidds.nmt.allocator import keep_freed_memory
from multidds.nmt.batches import Batch
from multidds.nmt.model import EPSILON, Layer, Transformer

SIZES = {
    "small": {"encoder_layers": 3, "decoder_layers": 3, "width": 256, "inner": 512, "heads": 4},
    "paper": {"encoder_layers": 6, "decoder_layers": 6, "width": 512, "inner": 1024, "heads": 4},
}
TOKENS = {"small": 4096, "paper": 4800}
VOCABULARY = 8000
LONGEST = 150
POOL = 50  # batches
DROPOUT = 0.3
SMOOTHING = 0.1
CLIP = 25.0


# ---------------------------------------------------------------------------------------------- plain PyTorch


@dataclass(frozen=True)
class Padded:
    source: Tensor  # [B, S]
    source_mask: Tensor  # [B, 1, 1, S]
    target_in: Tensor  # [B, T]
    target_out: Tensor  # [R]
    places: Tensor  # [R]


def padded(batch: Batch) -> Padded:
    def spread(tokens: Tensor, rows: batches.Rows) -> Tensor:
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


# ---------------------------------------------------------------------------------------------- the contestants

Step = Callable[[int], None]  # takes the number of a batch


def model_of(size: str, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT, "activation_dropout": DROPOUT}
    return Transformer(VOCABULARY, VOCABULARY, LONGEST + 2, norm="scale", **SIZES[size], **rates)


def stepper(model: nn.Module, loss: Callable[[int], Tensor], tokens: list[int]) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def step(i: int) -> None:
        (loss(i) / tokens[i]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain(size: str, data: list[Batch]) -> Step:
    model, inputs = model_of(size), [padded(batch) for batch in data]
    return stepper(model, lambda i: plain_loss(model, inputs[i], SMOOTHING), [batch.tokens for batch in data])


def ours(size: str, data: list[Batch]) -> Step:
    model = model_of(size)
    return stepper(model, lambda i: model(data[i], SMOOTHING), [batch.tokens for batch in data])


def marian(size: str, data: list[Batch]) -> Step:
    """Raises ImportError where transformers is not installed."""
    from transformers import MarianConfig, MarianMTModel

    settings = SIZES[size]
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": settings[f"{side}_layers"], f"{side}_ffn_dim": settings["inner"],
                  f"{side}_attention_heads": settings["heads"]}  # fmt: skip
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=settings["width"], max_position_embeddings=LONGEST + 2, dropout=DROPOUT,
        attention_dropout=DROPOUT, activation_dropout=DROPOUT, activation_function="relu", pad_token_id=0,
        decoder_start_token_id=1, scale_embedding=True, **sides,
    )  # fmt: skip
    torch.manual_seed(0)
    model, inputs = MarianMTModel(config).train(), [padded(batch) for batch in data]

    def loss(i: int) -> Tensor:
        batch = inputs[i]
        out = model(
            input_ids=batch.source, attention_mask=batch.source_mask[:, 0, 0], decoder_input_ids=batch.target_in
        )
        logits = out.logits.flatten(0, 1)[batch.places]
        return F.cross_entropy(logits, batch.target_out, label_smoothing=SMOOTHING, reduction="sum")

    return stepper(model, loss, [batch.tokens for batch in data])


# ---------------------------------------------------------------------------------------------- data and arithmetic


class MadeUp:
    """Sentences of random tokens with lengths like TED's: lognormal, mean 25."""

    name, tag = "made-up", None

    def __init__(self, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lengths = np.clip(np.exp(rng.normal(math.log(25) - 0.6**2 / 2, 0.6, count)), 1, LONGEST)
        other = np.clip(lengths * np.exp(rng.normal(0, 0.15, count)), 1, LONGEST)
        self.source_lengths, self.target_lengths = (np.round(x).astype(np.int32) + 1 for x in (lengths, other))
        self.source_offsets, self.target_offsets = (
            np.concatenate([[0], np.cumsum(x - 1)]) for x in (self.source_lengths, self.target_lengths)
        )
        # Zipf's law, as far as the embeddings' gradients can see it.
        self.source, self.target = (
            np.minimum(rng.zipf(1.2, offsets[-1]) + 4, VOCABULARY - 1)
            for offsets in (self.source_offsets, self.target_offsets)
        )


def made_up_batches(count: int, tokens: int) -> list[Batch]:
    """As in training: a pool of draws, sorted, cut and shuffled. From a smaller pool there would be more padding."""
    sentences = MadeUp(2 * POOL * tokens // 25)
    longer = np.maximum(sentences.source_lengths, sentences.target_lengths)
    enough = int(np.searchsorted(np.cumsum(longer), POOL * tokens))
    cut = batches._cut([(sentences, i) for i in range(enough)], POOL)
    return [batches.assemble(items) for items in batches._shuffled(cut, 0, 0)[:count]]


def arithmetic(size: str, batch: Batch) -> float:
    """Multiplications and additions of a step's matrix products: three times those of the forward pass."""
    s = SIZES[size]
    width, feed = s["width"], 2 * s["width"] * s["inner"]
    source, target = (
        torch.bincount(rows.places // rows.longest, minlength=rows.sentences).double()
        for rows in (batch.source_rows, batch.target_rows)
    )
    # A causal product is counted in full: nobody saves the other half at these lengths.
    attention = s["encoder_layers"] * source @ source + s["decoder_layers"] * (target @ target + target @ source)
    rows = s["encoder_layers"] * source.sum() * (4 * width**2 + feed)
    rows += s["decoder_layers"] * (target.sum() * (6 * width**2 + feed) + source.sum() * 2 * width**2)
    return float(3 * 2 * (rows + 2 * width * attention + target.sum() * width * VOCABULARY))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(size: str, names: list[str], count: int, rounds: int) -> dict[str, Any]:
    data = made_up_batches(count, TOKENS[size])
    steps: dict[str, Step] = {}
    missing = []
    for name in names:
        try:
            steps[name] = CONTESTANTS[name](size, data)
        except ImportError:
            missing.append(name)
    a, b = torch.randn(2, 2048, 2048)
    for step in steps.values():
        step(0)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    peaks = []
    for turn in range(rounds):
        for i in range(count):
            peaks.append(2 * 2048**3 / timed(lambda: a @ b))
            for name in list(steps)[:: 1 if (turn + i) % 2 else -1]:  # who goes first alternates
                seconds[name].append(timed(lambda name=name, i=i: steps[name](i)))
    peak = statistics.median(peaks)
    work = [arithmetic(size, batch) for batch in data] * rounds
    tokens = [batch.tokens for batch in data] * rounds
    real = sum(batch.tokens + len(batch.source) for batch in data)
    room = sum(batch.target_rows.tokens.numel() + batch.source_rows.tokens.numel() for batch in data)
    table = {}
    for name, times in seconds.items():
        ratios = [base / mine for base, mine in zip(seconds["plain"], times, strict=True)]
        table[name] = {
            "tokens_per_second": statistics.median(n / t for n, t in zip(tokens, times, strict=True)),
            "ratio_to_plain": statistics.median(ratios),
            "fraction_of_peak": statistics.median(w / t for w, t in zip(work, times, strict=True)) / peak,
        }
    return {"size": size, "threads": torch.get_num_threads(), "peak_gflops": peak / 1e9, "padding": room / real - 1,
            "steps": len(tokens), "contestants": table, "not_installed": missing}  # fmt: skip


CONTESTANTS = {"plain": plain, "ours": ours, "marian": marian}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--system-malloc", action="store_true", help="do not keep freed memory")
    parser.add_argument("--peak-memory", choices=["plain", "ours"], help="two steps of one contestant, its peak memory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = not options.system_malloc and keep_freed_memory()
    if options.peak_memory:
        step = CONTESTANTS[options.peak_memory](options.size, made_up_batches(2, TOKENS[options.size]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        step(0), step(1), step(0)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{options.peak_memory}: {before / 1024:.0f} MB before, at most {after / 1024:.0f} MB")
        return
    result = compare(options.size, list(CONTESTANTS), options.batches, options.rounds) | {"memory_kept": kept}
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['size']}, {result['threads']} thread(s), {result['steps']} steps each, padding "
          f"{result['padding']:.1%}, peak {result['peak_gflops']:.0f} GFLOP/s, freed memory kept: {kept}")  # fmt: skip
    for name, row in result["contestants"].items():
        print(f"{name:8} {row['tokens_per_second']:8.0f} target tokens/s  {row['ratio_to_plain']:.2f} x plain  "
              f"{row['fraction_of_peak']:.2f} of peak")  # fmt: skip
    for name in result["not_installed"]:
        print(f"{name:8} not installed")


if __name__ == "__main__":
    main()
