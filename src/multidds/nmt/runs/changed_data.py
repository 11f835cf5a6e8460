"""A run that goes on with other data (`--changed-data`): whether it can, and what of its checkpoint fits them.

The vocabulary of the run is kept, so that its model fits; where tokens were added at its end, the embeddings grow too.
What is learned of the mixture is carried over by the core.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..common.errors import UserError
from ..config.config import VOCABULARY, Config
from ..config.config_diff import with_data
from ..prepare import Prepared
from ..prepare.vocabulary import load_vocabulary, model_digests

HINT = "Where the data were changed on purpose, --changed-data goes on with them."


def hint_for(changed: list[str], old: Config, new: Config) -> str:
    """The hint, with a space before it, if these keys may change together with the data."""
    return f" {HINT}" if all(with_data(key, old, new) for key in changed) else ""


def check_changed(folder: Path, old: Config, new: Config, prepared: Prepared) -> None:
    """A UserError where the run in a folder cannot go on with these data."""
    where = f"{folder}: cannot go on with the changed data"
    if not set(old.data.names) & set(new.data.names):
        raise UserError(f"{where}: none of its language pairs is still there; begin a new run.")
    several = [len(config.data.targets) > 1 for config in (old, new)]
    if several[0] != several[1]:
        before, now = ("several target languages" if many else "one target language" for many in several)
        raise UserError(
            f"{where}: it was trained for {before}, but they have {now}. Only with several has every source sentence a "
            "tag that asks for its target language, and the model has learned the one or the other; begin a new run."
        )
    ours, theirs = load_vocabulary(folder / VOCABULARY), prepared.vocabulary
    longer = all(theirs[side][: len(tokens)] == tokens for side, tokens in ours.items())
    models = model_digests(prepared.folder)
    if not longer or not model_digests(folder / VOCABULARY).items() <= models.items():
        raise UserError(
            f"{where}: they were prepared with another vocabulary than its own. Set [vocabulary] keep = "
            f"{str(folder)!r} in the recipe, and run 'multidds prepare' again."
        )


def grown(tensors: Mapping[str, Tensor], model: nn.Module, fresh: bool) -> dict[str, Tensor]:
    """Tensors of a checkpoint, which end in the names of parameters, for a model with more tokens: the rows of new ones
    are those of the model, fresh as they are, or 0.
    """
    parameters = dict(model.named_parameters())
    found = dict(tensors)
    for key, tensor in tensors.items():
        name = next((name for name in parameters if f".{key}".endswith(f".{name}")), None)
        if name is None or tensor.dim() == 0 or tensor.shape == parameters[name].shape:
            continue
        own = parameters[name].detach().to("cpu", tensor.dtype)
        rows = own[len(tensor) :] if fresh else torch.zeros_like(own[len(tensor) :])
        if tensor.shape[1:] == own.shape[1:]:  # else it is of another model, which whoever loads it says
            found[key] = torch.cat([tensor, rows])
    return found
