"""The run that a training starts from (`[train] start_from`): fine-tuning with its weights and its vocabulary."""

from dataclasses import dataclass
from pathlib import Path

from multidds._base.errors import UserError

from ..config.config import Config, read_run
from ..prepare import Prepared
from ..prepare.vocabulary import load_vocabulary, model_digests, start_vocabulary
from . import checkpoints


@dataclass(frozen=True)
class EarlierRun:
    """The parts of an earlier run that a training starts from."""

    config: Config
    vocabulary: dict[str, list[str]]  # {"source" and "target": tokens by number}
    weights: Path  # its best model, for `checkpoints.read`


def earlier_run(config: Config, prepared: Prepared) -> EarlierRun | None:
    """Reads the run in `[train] start_from`; None if there is none.

    Raises a UserError if the run is missing, has no model yet, or if the data were prepared with another vocabulary:
    that of the run must come first, with each token at its number, so that the embeddings only grow.
    """
    folder = start_vocabulary(config)
    if folder is None:
        return None
    run, where = folder.parent, f"[train] start_from = {config.train.start_from!r}"
    if not (run / checkpoints.BEST).exists():
        raise UserError(f"{where}: has no trained model yet (there is no {checkpoints.BEST}).")
    vocabulary, models = load_vocabulary(folder), model_digests(prepared.folder)
    same_models = all(models.get(file, digest) == digest for file, digest in model_digests(folder).items())
    grown = all(prepared.vocabulary[side][: len(tokens)] == tokens for side, tokens in vocabulary.items())
    if not (same_models and grown):
        raise UserError(f"{where}: {prepared.folder} has another vocabulary; run 'multidds prepare' with this recipe.")
    return EarlierRun(read_run(run)[0], vocabulary, run / checkpoints.BEST)
