"""Balancing inside the trainers of TRL: `balance(trainer, train_sets)` after `SFTTrainer(...)` or `DPOTrainer(...)`.

TRL prepares its training data when a trainer is made, and takes one dataset. Here every dataset goes through that
preparation, and the whole becomes a `MixedDataset` with a `BalanceCallback` (`huggingface`), which do all the rest.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import trl
from trl import DPOTrainer, RewardTrainer, SFTTrainer

from .._base.checks import Refusal, listed, refuse
from ..mixture.mixture import Mixture
from ..sampling import is_stream
from .huggingface import BalanceCallback, MixedDataset
from .options import takes_options_of

_OWNER = "balance"
_KINDS = (SFTTrainer, DPOTrainer, RewardTrainer)


@takes_options_of(BalanceCallback, provided=("trainer", "dev", "seed"))
def balance(
    trainer: Any,
    train_sets: Mapping[str, Any],
    mixture: Mixture | None = None,
    dev: Mapping[str, Any] | Iterable[str] | None = None,
    seed: int = 0,
    **options: Any,
) -> BalanceCallback:
    """Train on several datasets and learn their mixture: call it once, after constructing the trainer.

    trainer: an SFTTrainer, DPOTrainer or RewardTrainer, constructed with any of the datasets as its `train_dataset`.
    train_sets: {name: dataset}, as TRL takes them; each is prepared as the trainer prepared its own (chat template,
        tokens, completion mask, truncation, packing, reference log probabilities).
    mixture: what to begin with; None: in proportion to the sizes after preparation.
    dev: by default the trainer's `eval_dataset`, a dict; or a list of some of its names, or a dict of other dev sets,
        which are prepared as well.
    seed: for the draws, and for everything random in probes.

    Returns the callback that was added to the trainer; `callback.balancer` is its balancer. Afterwards the trainer's
    `train_dataset` is a `MixedDataset`; with packing, its examples are packed rows.
    """
    _check(trainer, train_sets)
    prepared = {name: _prepared(trainer, d, name, "train") for name, d in train_sets.items()}
    if isinstance(dev, Mapping):
        dev = {name: _prepared(trainer, d, name, "eval") for name, d in dev.items()}
    if mixture is None:
        sized = not any(map(is_stream, prepared.values()))
        mixture = Mixture.proportional({n: len(d) for n, d in prepared.items()}) if sized else Mixture.uniform(prepared)
    before, trainer.train_dataset = trainer.train_dataset, MixedDataset(prepared, mixture, seed)
    try:
        callback = BalanceCallback(trainer, dev=dev, seed=seed, **options)
    except Exception:
        trainer.train_dataset = before
        raise
    trainer.add_callback(callback)
    return callback


def _prepared(trainer: Any, dataset: Any, name: str, role: str) -> Any:
    """What the trainer, with its arguments, makes of a dataset to train on or to evaluate. role: train or eval."""
    args = trainer.args
    if not getattr(trainer, "_skip_prepare_dataset", False):
        packing = getattr(args, "packing", False)
        if role == "eval" and getattr(args, "eval_packing", None) is not None:
            packing = args.eval_packing
        known = {"dataset": dataset, "processing_class": trainer.processing_class, "args": args, "dataset_name": name}
        known |= {"packing": packing, "formatting_func": getattr(trainer, "_formatting_func", None)}
        wanted = inspect.signature(trainer._prepare_dataset).parameters
        dataset = trainer._prepare_dataset(**{key: known[key] for key in wanted})
    if getattr(args, "precompute_ref_log_probs", False):
        size = args.per_device_train_batch_size if role == "train" else args.per_device_eval_batch_size
        dataset = trainer._precompute_ref_logps(dataset, name, args.precompute_ref_batch_size or size)
    return dataset


def _check(trainer: Any, train_sets: Any) -> None:
    names = ", ".join(kind.__name__ for kind in _KINDS)
    not_trl = f"the first argument must be one of TRL's {names}, got {type(trainer).__name__}."
    no_dict = f"train_sets must be {{name: dataset}}, got {type(train_sets).__name__}."
    kinds = [(not isinstance(trainer, _KINDS), not_trl), (not isinstance(train_sets, Mapping), no_dict)]
    refuse(_OWNER, kinds, TypeError)
    begun = trainer.state.global_step
    rows = [
        (not train_sets, "train_sets is empty."),
        (isinstance(trainer.train_dataset, MixedDataset), "it was called for this trainer before; make a new trainer."),
        (begun, f"the trainer has made {begun} steps already. Call it between the trainer's making and train()."),
    ]
    refuse(_OWNER, rows)
    refuse(_OWNER, _of_this_version(trainer))
    refuse(_OWNER, [*_of_formats(trainer, train_sets), *_of_streams(trainer, train_sets)])


def _of_this_version(trainer: Any) -> Iterable[Refusal]:
    """What is used of TRL beside its public names. Where another version does it otherwise, it is said at once."""
    advice = f"This is TRL {trl.__version__}; 1.16 is known to work."
    prepare = getattr(trainer, "_prepare_dataset", None)
    yield prepare is None, f"{type(trainer).__name__} has no method _prepare_dataset. {advice}"
    known = {"dataset", "processing_class", "args", "dataset_name", "packing", "formatting_func"}
    others = [key for key in inspect.signature(prepare).parameters if key not in known]  # type: ignore[arg-type]
    yield (
        others,
        f"_prepare_dataset of {type(trainer).__name__} wants {listed(others)}, which is unknown here. {advice}",
    )
    yield (
        getattr(trainer.args, "precompute_ref_log_probs", False) and not hasattr(trainer, "_precompute_ref_logps"),
        f"precompute_ref_log_probs=True needs the method _precompute_ref_logps. {advice} Or set it to False.",
    )


def _of_formats(trainer: Any, train_sets: Mapping[str, Any]) -> Iterable[Refusal]:
    """What a trainer decides by its one dataset must be right for all."""
    examples: dict[str, Any] = {name: next(iter(d), {}) for name, d in train_sets.items()}
    pictures = [name for name, example in examples.items() if {"image", "images"} & example.keys()]
    yield (
        pictures or getattr(trainer, "_is_vision_dataset", False),
        f"datasets with images are not supported: {listed(pictures or train_sets)}.",
    )
    if not hasattr(trainer, "completion_only_loss") or trainer.args.completion_only_loss is not None:
        return
    decided = trainer.completion_only_loss
    unlike = [name for name, example in examples.items() if ({"prompt", "completion"} <= example.keys()) != decided]
    yield (
        unlike and any("input_ids" not in examples[name] for name in unlike),
        f"some datasets have prompts and completions, others ({listed(unlike)}) are not like the one that the trainer "
        "was made with, which would decide for all. Set completion_only_loss=True or False in SFTConfig.",
    )


def _of_streams(trainer: Any, train_sets: Mapping[str, Any]) -> Iterable[Refusal]:
    streams = [name for name, d in train_sets.items() if is_stream(d)]
    yield (
        streams and not is_stream(trainer.train_dataset),
        f"some datasets are streams ({listed(streams)}), but the trainer was made with one that is not. Make it with "
        "one of the streams: it reads them otherwise.",
    )
