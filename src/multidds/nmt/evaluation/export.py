"""The export of a run: its best model as a CTranslate2 folder, which anyone can serve without this package.

The conversion is exact. Imports neither torch nor numpy until a checkpoint has to be converted.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multidds._base.errors import DamagedError, UserError
from multidds._base.escaping import printable
from multidds._base.files import LOCK, locked, whole_folder

from ..common.checksummed import check_files, checksummed, read_checksummed, sha256
from ..config.config import VOCABULARY, Config, read_run
from ..prepare.vocabulary import SPECIALS, load_model, load_vocabulary, model_file, model_of, models_of, tag_of
from ..runs import checkpoints
from ..runs.identity import check_owner

STAMP = "multidds.json"
_REMEDY = "'multidds evaluate' and 'translate' make it again."

Notice = Callable[[str], None]  # shows a line


def export(run: Path, notice: Notice = lambda text: None) -> Path:
    """Converts the best model of a run, unless that has been done already, and returns the folder.

    notice: called with a line if the folder is damaged; it is then made again.
    """
    config, facts = read_run(run)
    best, folder = run / checkpoints.BEST, run / "export"
    if not best.exists():
        raise UserError(f"{run}: has no trained model yet; the first is written after the first epoch.")
    checksum = checkpoints.noted_checksum(best)
    if checksum is not None and _source_checksum(folder, notice) == checksum:
        return folder
    with locked(run / f"export{LOCK}", f"{run}: is being exported by another process; try again when it is done."):
        tensors, state = checkpoints.read(best, framework="numpy")
        weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        with whole_folder(folder) as partial:
            convert(config, weights, load_vocabulary(run / VOCABULARY), partial)
            for name in models_of(config):
                load_model(run / VOCABULARY, name)  # raises if it is damaged
                shutil.copy(run / VOCABULARY / model_file(name), partial)
            (partial / "README.md").write_text(_readme(config, run.name, state), encoding="utf-8")
            stamp = {
                "run": facts.get("run"),
                "checkpoint": state,
                "checksum of the checkpoint": checkpoints.noted_checksum(best),
                "files": {path.name: sha256(path) for path in sorted(partial.iterdir())},
            }
            (partial / STAMP).write_bytes(checksummed(stamp))
    return folder


def read_export(folder: Path) -> dict[str, Any]:
    """Returns the stamp of an exported folder, with the digests of its files; a DamagedError if one of them differs."""
    stamp = read_checksummed(folder / STAMP, _REMEDY)
    check_files(folder, stamp, _REMEDY)
    check_owner(folder / STAMP, stamp.get("run"), folder.parent, _REMEDY)
    return stamp


def _source_checksum(folder: Path, notice: Notice) -> str | None:
    """Returns the checksum of the checkpoint that a folder was made from; None if it is missing or damaged."""
    if not folder.exists():
        return None
    try:
        return str(read_export(folder)["checksum of the checkpoint"])
    except DamagedError as error:
        notice(f"{error} Making it again.")
        return None


def longest_translation(config: Config) -> int:
    """Returns the number of tokens that a translation may have: far more than any sentence of training."""
    return max(512, 3 * config.data.max_length)


def convert(config: Config, weights: Mapping[str, Any], vocabulary: Mapping[str, list[str]], folder: Path) -> None:
    """Writes the parameters of a model, numpy arrays by name, as a CTranslate2 model into an empty folder."""
    spec = _spec(config, weights)
    spec.register_source_vocabulary(vocabulary["source"])
    spec.register_target_vocabulary(vocabulary["target"])
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def _spec(config: Config, weights: Mapping[str, Any]) -> Any:
    """Returns the model as CTranslate2 describes it. ScaleNorm is RMSNorm with the constant weight g / sqrt(D)."""
    import numpy as np
    from ctranslate2.specs import TransformerSpec

    from ..model.transformer import EPSILON, sinusoids

    settings = config.model
    scale = settings.norm == "scale"
    spec = TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers), settings.heads, pre_norm=True, rms_norm=scale
    )
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SPECIALS
    spec.config.decoder_start_token = SPECIALS[1]
    spec.config.add_source_eos = True
    positions = sinusoids(longest_translation(config) + 2, settings.width).numpy()

    def linear(into: Any, name: str) -> None:
        into.weight, into.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def norm(into: Any, name: str) -> None:
        if scale:
            into.gamma = np.full(settings.width, weights[f"{name}.g"] / np.sqrt(settings.width), dtype=np.float32)
        else:
            into.gamma, into.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for side, layers in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        norm(side.layer_norm, f"{layers}_norm")
        side.position_encodings.encodings = positions
        for i, layer in enumerate(side.layer):
            name = f"{layers}.{i}"
            norm(layer.self_attention.layer_norm, f"{name}.self_norm")
            linear(layer.self_attention.linear[0], f"{name}.self_attention.query_key_value")
            linear(layer.self_attention.linear[1], f"{name}.self_attention.out")
            if layers == "decoder":
                norm(layer.attention.layer_norm, f"{name}.cross_norm")
                for place, part in enumerate(("query", "key_value", "out")):
                    linear(layer.attention.linear[place], f"{name}.cross_attention.{part}")
            norm(layer.ffn.layer_norm, f"{name}.feed_norm")
            linear(layer.ffn.linear_0, f"{name}.inner")
            linear(layer.ffn.linear_1, f"{name}.outer")
    spec.encoder.embeddings[0].weight = weights["source_embedding.weight"]
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = weights["target_embedding.weight"]
    return spec


def _readme(config: Config, name: str, state: dict[str, Any]) -> str:
    source, target = config.data.pairs[0].source, config.data.pairs[0].target
    several = len(config.data.targets) > 1
    tag = f"[{tag_of(target)!r}] + " if several else ""
    tags = printable(", ".join(map(tag_of, config.data.targets)))
    pairs = printable(", ".join(config.data.names))
    return f"""# {name}

A [CTranslate2](https://opennmt.net/CTranslate2/) model for {pairs}, from step {state["step"]} of
its training. `pip install ctranslate2 sentencepiece` is all that is needed:

```python
import ctranslate2
import sentencepiece

translator = ctranslate2.Translator(".")
pieces = sentencepiece.SentencePieceProcessor(model_file="{model_file(model_of(config, source))}")
tokens = {tag}[pieces.id_to_piece(i) for i in pieces.encode("...")]
result = translator.translate_batch([tokens], beam_size={config.translate.beam})[0].hypotheses[0]
print("".join(result).replace("\u2581", " ").strip())
```

{f"The first token chooses the target language: {tags}." if several else ""}
The sentencepiece models are in this folder. Sentences of up to {config.data.max_length} tokens were trained on.
"""
