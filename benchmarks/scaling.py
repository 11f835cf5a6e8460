"""The cost of one update, from 4 to 512 datasets: seconds and memory.

For each n = K: passes, seconds and peak memory of an update, and of n + K training passes (forward, backward, clearing
gradients) of the same batches. Both are measured by turns in the same minute. The last line has the growth exponent in
n. Memory is that of living tensors, counted at every operation. It is exact and repeatable, unlike the memory of a
process. The model is a causal transformer. The text is the sources and the documentation of Python's standard library.

    python benchmarks/scaling.py [--most 512 | --tiny] [--json FILE]
"""

import argparse
import json
import math
import pydoc_data.topics
import statistics
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from multidds import Balancer, Mixture
from multidds.rules import Scorer

LENGTH = 64


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # [batch, length] -> [batch, length, vocabulary]
        h = self.embed(ids) + self.position.weight[: ids.shape[1]]
        return self.out(self.body(h, mask=self.mask, is_causal=True))


def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def texts(count: int) -> list[bytes]:
    """Real text of `count` kinds: topics of the documentation, then modules of the standard library."""
    topics = [text.encode() for _, text in sorted(pydoc_data.topics.topics.items())]
    modules = [path.read_bytes() for path in sorted(Path(json.__file__).parent.parent.glob("*.py"))]
    long_enough = [text for pair in zip(topics, modules, strict=False) for text in pair if len(text) > 20 * LENGTH]
    return [long_enough[i % len(long_enough)] for i in range(count)]


def batches(text: bytes, size: int, count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    starts = torch.randint(len(ids) - LENGTH - 1, (count, size), generator=generator)
    return [torch.stack([ids[i : i + LENGTH + 1] for i in row.tolist()]) for row in starts]


class PeakTensorMemory(TorchDispatchMode):
    """`with PeakTensorMemory() as memory:` counts what is allocated inside; `memory.peak` is in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.living = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for item in tree_leaves((args, kwargs)):
            if isinstance(item, torch.Tensor):  # was there before: neither it nor a view of it is counted
                self._seen.add(item.untyped_storage()._cdata)
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(item, torch.Tensor):
                self._count(item.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.living += size
        self.peak = max(self.peak, self.living)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.living -= size


def training_passes(model: nn.Module, sets: list[torch.Tensor]) -> None:
    for batch in sets:
        loss(model, batch).backward()
        model.zero_grad()


def cost(n: int, size: int, repeat: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = Transformer(width=128, layers=4, heads=4)
    vector = sum(p.numel() * 4 for p in model.parameters())
    names = [f"d{i}" for i in range(n)]
    sets = [batches(text, size, 2, seed=i) for i, text in enumerate(texts(n))]
    train = {name: both[:1] for name, both in zip(names, sets, strict=True)}
    dev = {name: both[1:] for name, both in zip(names, sets, strict=True)}
    flat = [batch for both in sets for batch in both]
    kinds = {"plain": Scorer(), "sketched": Scorer(table=2**16)}
    balancers = {
        kind: Balancer(Mixture.uniform(names), model, loss, train=train, dev=dev, every=1, rule=rule)
        for kind, rule in kinds.items()
    }
    seconds: dict[str, list[float]] = {"training": [], "plain": [], "sketched": []}
    for _ in range(repeat):
        for kind, run in (
            ("training", lambda: training_passes(model, flat)),
            ("plain", balancers["plain"].update),
            ("sketched", balancers["sketched"].update),
        ):
            began = time.perf_counter()
            run()
            seconds[kind].append(time.perf_counter() - began)
    peaks = {}
    for kind, run in (
        ("training", lambda: training_passes(model, flat[:2])),
        ("plain", balancers["plain"].update),
        ("sketched", balancers["sketched"].update),
    ):
        with PeakTensorMemory() as memory:
            run()
        peaks[kind] = memory.peak
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "n": n,
        "passes": 2 * n,
        "training seconds": median["training"],
        "update seconds": median["plain"],
        "ratio": statistics.median(a / b for a, b in zip(seconds["plain"], seconds["training"], strict=True)),
        "ratio with sketches": statistics.median(
            a / b for a, b in zip(seconds["sketched"], seconds["training"], strict=True)
        ),
        "extra vectors": (peaks["plain"] - peaks["training"]) / vector,
        "extra MB per dataset with sketches": (peaks["sketched"] - peaks["plain"]) / n / 1e6,
    }


def show(rows: list[dict[str, float]]) -> None:
    widths = [max(len(key), 9) for key in rows[0]]
    print("  ".join(f"{key:>{w}}" for key, w in zip(rows[0], widths, strict=True)))
    for row in rows:
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
        print("  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True)))
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=512, help="largest number of datasets")
    parser.add_argument("--tiny", action="store_true", help="two and four datasets, to see whether it runs")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 tokens per probe batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    counts = [2, 4] if args.tiny else [n for n in (4, 8, 16, 32, 64, 128, 256, 512) if n <= args.most]
    cost(4, args.batch, 1)  # warm up
    rows: list[dict[str, float]] = []
    for n in counts:
        rows.append(cost(n, args.batch, repeat=1 if args.tiny else max(1, 96 // n)))
        show(rows[-1:])
    print("all:")
    show(rows)
    slope = statistics.linear_regression(
        [math.log(row["n"]) for row in rows], [math.log(row["update seconds"]) for row in rows]
    ).slope
    print(f"growth exponent of an update in n: {slope:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"updates": rows, "growth": slope}, indent=1) + "\n")


if __name__ == "__main__":
    main()
