"""Balancing inside the trainers of TRL: one line after `SFTTrainer(...)`, `DPOTrainer(...)` or `RewardTrainer(...)`.

TRL prepares its training data when a trainer is constructed, and takes one dataset. `balance` prepares every dataset in
the same way, and combines them by the `MixedDataset` and the `BalanceCallback` of the Hugging Face Trainer.

>>> from multidds.integrations.trl import balance

>>> trainer = SFTTrainer(model, args, train_dataset=train_sets["code"], eval_dataset=dev_sets)  # doctest: +SKIP
>>> balance(trainer, train_sets)  # doctest: +SKIP
"""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Unpack

import trl
from trl import DPOTrainer, RewardTrainer, SFTTrainer

from .._base.checks import Refusal, listed, refuse
from ..balancer import Budget
from ..mixture import Mixture
from ..probes.probed_model import Loss
from ..sampling import is_stream
from .balancer_arguments import BalancerArguments, check_examples, with_balancer_arguments
from .huggingface import BalanceCallback, MixedDataset

_OWNER = "balance"
_KINDS = (SFTTrainer, DPOTrainer, RewardTrainer)
_PREPARE_ARGUMENTS = {"dataset", "processing_class", "args", "dataset_name", "packing", "formatting_func"}


@with_balancer_arguments
def balance(
    trainer: Any,
    train_sets: Mapping[str, Any],
    mixture: Mixture | None = None,
    dev: Mapping[str, Any] | Collection[str] | None = None,
    *,
    every: int | Budget = Budget(),
    batch_size: int | None = None,
    loss: Loss | None = None,
    inexact_resume: bool = False,
    **arguments: Unpack[BalancerArguments],
) -> BalanceCallback:
    """Trains on several datasets and learns their mixture: call it once, after constructing the trainer.

    trainer: an SFTTrainer, DPOTrainer or RewardTrainer, constructed with any of the datasets as its `train_dataset`.
    train_sets: {name: dataset}, as TRL takes them; each is prepared as the trainer prepared its own (chat template,
        tokens, completion mask, truncation, packing, reference log probabilities).
    mixture: the mixture to begin with. Default None: in proportion to the sizes after preparation.
    dev: the dev sets: a dict, whose datasets are prepared as well, or a list of names in the trainer's `eval_dataset`.
        Default None: all of `eval_dataset`; if that is one dataset, the dev set is called "dev".
    every, batch_size, loss, inexact_resume: as in `BalanceCallback`.
    **arguments: of `Balancer`.
        The seed is also that of the draws.

    Returns the callback that was added to the trainer. Afterwards the trainer's `train_dataset` is a `MixedDataset`;
    with packing, its examples are packed rows.
    """
    _check(trainer, train_sets)
    prepared = {name: _prepared(trainer, d, name, "train") for name, d in train_sets.items()}
    if isinstance(dev, Mapping):
        check_examples(f"{_OWNER}: dev", dev)
        dev = {name: _prepared(trainer, d, name, "eval") for name, d in dev.items()}
    mixture = mixture or _proportional(prepared)
    before, trainer.train_dataset = trainer.train_dataset, MixedDataset(prepared, mixture, arguments.get("seed", 0))
    try:
        callback = BalanceCallback(trainer, every, dev, batch_size, loss, inexact_resume, **arguments)
    except Exception:
        trainer.train_dataset = before
        raise
    trainer.add_callback(callback)
    return callback


def _prepared(trainer: Any, dataset: Any, name: str, role: str) -> Any:
    """Returns a dataset as the trainer, with its arguments, prepares it. role: train or eval."""
    args = trainer.args
    if not getattr(trainer, "_skip_prepare_dataset", False):
        packing = getattr(args, "packing", False)
        if role == "eval" and getattr(args, "eval_packing", None) is not None:
            packing = args.eval_packing
        arguments = {
            "dataset": dataset,
            "processing_class": trainer.processing_class,
            "args": args,
            "dataset_name": name,
        }
        arguments |= {"packing": packing, "formatting_func": getattr(trainer, "_formatting_func", None)}
        wanted = inspect.signature(trainer._prepare_dataset).parameters
        dataset = trainer._prepare_dataset(**{key: arguments[key] for key in wanted})
    if getattr(args, "precompute_ref_log_probs", False):
        size = args.per_device_train_batch_size if role == "train" else args.per_device_eval_batch_size
        dataset = trainer._precompute_ref_logps(dataset, name, args.precompute_ref_batch_size or size)
    return dataset


def _proportional(datasets: Mapping[str, Any]) -> Mixture:
    """Returns the mixture in proportion to sizes; a uniform one if there are streams, whose sizes are unknown."""
    if any(map(is_stream, datasets.values())):
        return Mixture.uniform(list(datasets))
    return Mixture.proportional({name: len(dataset) for name, dataset in datasets.items()})


def _check(trainer: Any, train_sets: Any) -> None:
    names = ", ".join(kind.__name__ for kind in _KINDS)
    not_trl = f"trainer must be one of TRL's {names}, got {type(trainer).__name__}."
    no_dict = f"train_sets must be {{name: dataset}}, got {type(train_sets).__name__}."
    kinds = [(not isinstance(trainer, _KINDS), not_trl), (not isinstance(train_sets, Mapping), no_dict)]
    refuse(_OWNER, kinds, TypeError)
    check_examples(f"{_OWNER}: train_sets", train_sets)
    refuse(_OWNER, _of_trainer(trainer))
    refuse(_OWNER, _of_data(trainer, train_sets))


def _of_trainer(trainer: Any) -> Iterator[Refusal]:
    again = isinstance(trainer.train_dataset, MixedDataset)
    yield again, "it was called for this trainer before; construct a new trainer."
    begun = trainer.state.global_step
    yield begun, f"the trainer has made {begun} steps already; call balance before train()."
    # Methods of TRL that are not public: another version may have others.
    version = f"This is TRL {trl.__version__}; 1.16 is known to work."
    ahead = getattr(trainer.args, "precompute_ref_log_probs", False)
    used = ["_prepare_dataset", "_precompute_ref_logps"] if ahead else ["_prepare_dataset"]
    missing = [name for name in used if getattr(trainer, name, None) is None]
    yield missing, f"{type(trainer).__name__} has no method {listed(missing)}. {version}"
    unknown = inspect.signature(trainer._prepare_dataset).parameters.keys() - _PREPARE_ARGUMENTS
    yield unknown, f"_prepare_dataset has unknown arguments: {listed(sorted(unknown))}. {version}"


def _of_data(trainer: Any, train_sets: Mapping[str, Any]) -> Iterator[Refusal]:
    """A trainer takes some decisions by its one dataset; they must be right for all."""
    yield not train_sets, "train_sets is empty."
    streams = [name for name, d in train_sets.items() if is_stream(d)]
    other = streams and not is_stream(trainer.train_dataset)
    yield other, f"train_sets has streams ({listed(streams)}); construct the trainer with one of them."
    examples: dict[str, Any] = {name: next(iter(d), {}) for name, d in train_sets.items()}
    pictures = [name for name, example in examples.items() if {"image", "images"} & example.keys()]
    with_images = pictures or getattr(trainer, "_is_vision_dataset", False)
    yield with_images, f"datasets with images are not supported: {listed(pictures or train_sets)}."
    if getattr(trainer.args, "completion_only_loss", False) is not None:
        return
    decided = trainer.completion_only_loss
    unlike = [name for name, example in examples.items() if ({"prompt", "completion"} <= example.keys()) != decided]
    yield (
        any("input_ids" not in examples[name] for name in unlike),
        f"{listed(unlike)} and the trainer's dataset are not both of prompts and completions; set completion_only_loss "
        "to True or False in SFTConfig.",
    )
