"""The weights at the start of a fine-tuned training: those of the run in `[train] start_from`."""

import torch

from multidds._base.errors import DamagedError, UserError

from ..config.config import Config
from ..model.transformer import Transformer
from ..runs import checkpoints
from ..runs.earlier_run import EarlierRun

_SHAPE = ("encoder_layers", "decoder_layers", "width", "inner", "heads", "norm")  # keys of [model]


@torch.no_grad()
def load_start_weights(model: Transformer, config: Config, earlier: EarlierRun) -> None:
    """Copies the best model of an earlier run, which `evaluate` and `translate` use, into a model of the same shape.

    It is the average of weights if that run averaged them. Tokens that its vocabulary does not have keep the
    embeddings that they have in `model`.
    """
    where = f"[train] start_from = {config.train.start_from!r}"
    for key in _SHAPE:
        theirs, ours = getattr(earlier.config.model, key), getattr(config.model, key)
        if theirs != ours:
            raise UserError(f"{where}: that run has [model] {key} = {theirs!r}, but the recipe has {ours!r}.")
    try:
        tensors, _ = checkpoints.read(earlier.weights)
    except DamagedError as error:
        raise DamagedError(f"{where}: {error}") from None
    for name, parameter in model.named_parameters():
        weights = tensors[f"model.{name}"]
        old_rows = slice(len(weights)) if weights.dim() else ...
        parameter[old_rows] = weights.to(parameter.device)
