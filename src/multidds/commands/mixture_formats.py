"""A mixture in the formats of the tools that train: a table of them, at the end.

A format is a pure function from a `Blend` to text, with numbers that read back as the same floats. `docs/elsewhere.md`
has the source of each.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .._base.errors import UserError
from .._base.text import short, suggestion


@dataclass(frozen=True)
class Blend:
    """What a format is written from, under the names that the tool has for the datasets.

    shares: {name: probability}.
    sizes: {name: number of examples}; empty: unknown.
    draws: examples that the whole training draws. None: unknown.
    """

    shares: dict[str, float]
    sizes: dict[str, float]
    draws: float | None

    def each(self, line: str) -> str:
        """Returns a line for each dataset. line: a template with {name}, a string in quotes, and {share}."""
        return "".join(line.format(name=_quoted(name), share=_number(p)) for name, p in self.shares.items())


@dataclass(frozen=True)
class Format:
    """write: the writer. name: what the tool usually calls a dataset. separators: letters that no name may have.

    needs_sizes, needs_draws: whether it writes numbers of examples or passes.
    """

    write: Callable[[Blend], str]
    name: str = "{name}"
    separators: str = ""
    needs_sizes: bool = False
    needs_draws: bool = False


def written(
    shares: Mapping[str, float],
    tool: str,
    template: str | None = None,
    sizes: Mapping[str, float] | None = None,
    draws: float | None = None,
) -> str:
    """Returns the mixture as the configuration of another tool.

    tool: a key of FORMATS.
    template: the tool's name of a dataset, with {name} in it. Default None: the usual one.
    sizes: {dataset: number of examples}. Default None: unknown.
    draws: examples that the whole training draws. Default None: unknown.
    """
    if tool not in FORMATS:
        raise UserError(f"--for {tool}: is unknown.{suggestion(tool, tuple(FORMATS)) or _ALL}")
    format_ = FORMATS[tool]
    template = format_.name if template is None else template
    if "{name}" not in template:
        raise UserError(f"--data {template}: must contain {{name}}, which stands for the name of a dataset.")
    if (format_.needs_sizes and not sizes) or (format_.needs_draws and draws is None):
        what = "sizes, --steps and --batch" if format_.needs_sizes else "--steps and --batch"
        raise UserError(f"--for {tool}: writes numbers of examples. Give {what}.")
    # fairseq looks every dataset up; the others refuse one of probability 0, or wait for it to end.
    kept = [name for name, p in shares.items() if p > 0 or format_.write is _json]
    filled = {name: template.replace("{name}", name) for name in kept}
    for text in filled.values():
        if format_.separators and (set(format_.separators) & set(text) or not text.isprintable()):
            raise UserError(f"--data {template}: {tool} splits names at {format_.separators!r}, but one is {text!r}.")
    sizes = {filled[name]: sizes[name] for name in kept} if sizes else {}
    return format_.write(Blend({filled[name]: shares[name] for name in kept}, sizes, draws)).rstrip("\n")


def _json(blend: Blend) -> str:
    return json.dumps(blend.shares, ensure_ascii=False)  # fairseq evaluates it: see _quoted


def _hf(blend: Blend) -> str:
    return f"names = {_listed(blend)}\nprobabilities = {list(blend.shares.values())}"


def _megatron(blend: Blend) -> str:
    return "\n".join(f"{p!r} {path}" for path, p in blend.shares.items())


def _megatron_bridge(blend: Blend) -> str:
    assert blend.draws is not None
    passes = [p * blend.draws / blend.sizes[name] for name, p in blend.shares.items()]
    sources = blend.each("    HFDatasetSourceConfig(path_or_dataset={name}),\n")
    head = "from megatron.bridge.data.builders import HFDatasetSourceConfig\n\n"
    return f"{head}source = [\n{sources}]\nsource_weights = {passes}  # passes over each source, in one epoch"


def _streaming(blend: Blend) -> str:
    rows = "".join(
        f"    Stream({'remote' if '://' in path else 'local'}={_quoted(path)}, proportion={p!r}),\n"
        for path, p in blend.shares.items()
    )
    return f"from streaming import Stream\n\nstreams = [\n{rows}]"


def _lhotse(blend: Blend) -> str:
    sets = [f"CutSet.from_file({_quoted(path)}).repeat()" for path in blend.shares]
    cuts = sets[0]  # mux refuses a single one
    if len(sets) > 1:
        weights = list(blend.shares.values())
        cuts = "CutSet.mux(\n" + "".join(f"    {one},\n" for one in sets) + f"    weights={weights},\n)"
    return f"from lhotse import CutSet\n\ncuts = {cuts}"


def _trl(blend: Blend) -> str:
    return f"{_cut(blend)}\ndatasets:\n" + blend.each("  - path: {name}\n    fraction: {share}\n")


def _torchtitan(blend: Blend) -> str:
    rows = blend.each("        WeightedDataset(dataset=datasets[{name}], weight={share}),\n")
    head = "from torchtitan.components.data import DatasetMixConfig, WeightedDataset\n\n"
    return f"{head}mix = DatasetMixConfig(\n    datasets=(\n{rows}    ),\n)"


def _llama_factory(blend: Blend) -> str:
    shares = ",".join(map(_number, blend.shares.values()))  # in quotes: one alone would be a number
    names = _quoted(",".join(blend.shares))
    return f'dataset: {names}\nmix_strategy: interleave_over\ninterleave_probs: "{shares}"'


def _ms_swift(blend: Blend) -> str:
    assert blend.draws is not None
    counts = {name: max(1, round(p * blend.draws)) for name, p in blend.shares.items()}
    return "--dataset " + " ".join(shlex.quote(f"{name}#{count}") for name, count in counts.items())


def _energon(blend: Blend) -> str:
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    return head + blend.each("      - weight: {share}\n        path: {name}\n")


def _ray(blend: Blend) -> str:
    head = f"from ray.data import MixStoppingCondition\n\n{_cut(blend)}\n"
    end = "stopping_condition=MixStoppingCondition.STOP_ON_SHORTEST"
    mixed = f"mixed = first.mix(\n    *others,\n    weights={list(blend.shares.values())},\n    {end},\n)"
    return f"{head}first, *others = [datasets[name] for name in {_listed(blend)}]\n{mixed}"


def _cut(blend: Blend) -> str:
    """Returns a comment for a tool that cuts datasets to their shares and repeats none: what is lost."""
    if not blend.sizes:
        return "# Datasets are cut to these shares and never repeated: the smallest for its share limits all."
    total = min(size / blend.shares[name] for name, size in blend.sizes.items())
    kept = {name: round(p * total) for name, p in blend.shares.items()}
    losses = [f"{short(name, 200)} {size - kept[name]:,.0f}" for name, size in blend.sizes.items() if size > kept[name]]
    epochs = "" if blend.draws is None else f" {blend.draws / total:.3g} epochs make {blend.draws:,.0f} draws."
    lost = f" Lost: {', '.join(losses)}." if losses else ""
    return f"# Cut, never repeated: {sum(kept.values()):,} of {sum(blend.sizes.values()):,.0f} examples.{lost}{epochs}"


def _quoted(text: str) -> str:
    # A JSON string is a string of Python and YAML too, but for the escapes of letters beyond 16 bits.
    return json.dumps(text, ensure_ascii=False)


def _number(p: float) -> str:
    text = repr(p)
    return text if "." in text else text.replace("e", ".0e")  # YAML takes 1e-05 for a string


def _listed(blend: Blend) -> str:
    return "[" + ", ".join(map(_quoted, blend.shares)) + "]"


FORMATS = {
    "json": Format(_json),
    "fairseq": Format(
        _json, "main:{name}"
    ),  # JSON for --sampling-weights-from-file, and as good for --sampling-weights
    "hf": Format(_hf),
    "trl": Format(_trl),
    "llama-factory": Format(_llama_factory, separators=","),
    "ms-swift": Format(_ms_swift, needs_draws=True),
    "megatron": Format(_megatron, "{name}_text_document", " "),  # what its preprocess_data.py adds to a prefix
    "megatron-bridge": Format(_megatron_bridge, needs_sizes=True, needs_draws=True),
    "energon": Format(_energon),
    "torchtitan": Format(_torchtitan),
    "streaming": Format(_streaming),
    "lhotse": Format(_lhotse, "{name}.jsonl.gz"),
    "ray": Format(_ray),
}
TOOLS = ", ".join(FORMATS)
_ALL = f" There are {TOOLS}."
