"""Balancing inside the real trainers of TRL: what they count and log is unchanged, and a resume is exact."""

from functools import partial

import datasets
import pytest
import torch.distributed as dist
from assertions import assert_ranks_equal_one_process
from toy_trainers import MOVING, QUIET, STILL, assert_resumes, lasting, mixtures, same_parameters
from toy_trl import dev_sets, dpo, reward, rows, sft, train_sets

from multidds import Limits, Mixture, MixtureSampler, Probes
from multidds.integrations.trl import balance
from multidds.rules import RelevancePlan, paper

pytestmark = QUIET

KINDS = {
    "text": (sft, "text", {}),
    "completions": (sft, "completion", {"gradient_accumulation_steps": 2}),
    "packed": (sft, "text", {"packing": True}),
    "wrapped": (sft, "text", {"packing": True, "packing_strategy": "wrapped"}),
    "lora": (sft, "text", {"lora": True}),
    "preferences": (dpo, "preference", {}),
    "preferences-lora": (dpo, "preference", {"lora": True}),
    "rewards": (reward, "preference", {}),
    "workers": (sft, "completion", {"dataloader_num_workers": 2}),
}


def losses(trainer):
    """The rows that the trainer logs of its training, without times and epochs."""
    rows = [row for row in lasting(trainer.state.log_history) if "loss" in row]
    return [{key: value for key, value in row.items() if key != "epoch"} for row in rows]


@pytest.mark.claim(
    "TRL",
    "**same result as a loop by hand**, **metrics and logs untouched by probes**, **gradient "
    "accumulation**, **LoRA (PEFT)**: every loss, token count, accuracy and reward that TRL logs, and "
    "every weight, is that of plain TRL on the same examples: SFT, completion-only loss, packing (both "
    "strategies), LoRA, DPO, DPO with LoRA, reward models",
)
@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_logs_are_those_of_trl_on_the_same_examples(kind, tmp_path):
    make, data, settings = KINDS[kind]
    balanced = make(tmp_path, train_sets(data)["b"], dev_sets(data), **settings)
    callback = balance(balanced, train_sets(data), every=3, seed=3, **STILL)
    prepared, sizes = balanced.train_dataset.datasets, balanced.train_dataset.sizes
    balanced.train()
    assert len(callback.balancer.history) == 2
    assert callback.mixture.probabilities == pytest.approx(Mixture.proportional(sizes).probabilities)

    count = 6 * balanced.args.gradient_accumulation_steps * 4
    indices = iter(MixtureSampler(sizes, Mixture.proportional(sizes), seed=3))
    everything = datasets.concatenate_datasets(list(prepared.values()))
    drawn = everything.select([next(indices) for _ in range(count)])
    if make is sft:
        settings = {**settings, "dataset_kwargs": {"skip_prepare_dataset": True}}
    dev = dev_sets(data) if make is dpo else None
    plain = make(tmp_path, drawn, dev, **settings, train_sampling_strategy="sequential")
    plain.train()
    assert len(losses(plain)) == 6
    assert "num_tokens" in losses(plain)[0]
    assert losses(balanced) == losses(plain)
    assert same_parameters(balanced, plain)


@pytest.mark.claim(
    "TRL",
    "**exact resume**, **data-loader workers**: packing, LoRA, DPO with LoRA, completion-only loss with two workers",
)
@pytest.mark.parametrize("kind", ["packed", "lora", "preferences-lora", "workers"])
def test_resume_is_exact(kind, tmp_path):
    make, data, settings = KINDS[kind]
    settings = {**settings, "save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2}

    def made():
        trainer = make(tmp_path, train_sets(data)["a"], dev_sets(data), **settings)
        return trainer, balance(trainer, train_sets(data), every=2, priority="low", **MOVING)

    whole, _ = assert_resumes(made, tmp_path / "checkpoint-3", log=False)  # TRL counts tokens anew after a resume
    assert len({tuple(mixture.values()) for mixture in mixtures(whole).values()}) == 3


@pytest.mark.claim("TRL", "**streams**, with exact resume")
def test_streams_are_prepared_and_mixed(tmp_path):
    streams = {name: d.to_iterable_dataset() for name, d in train_sets().items()}

    def made():
        trainer = sft(tmp_path, streams["a"], dev_sets(), max_steps=4, save_strategy="steps", save_steps=2)
        return trainer, balance(trainer, streams, every=2)

    whole, _ = assert_resumes(made, tmp_path / "checkpoint-2", log=False)
    assert mixtures(whole).keys() == {2, 4}


@pytest.mark.claim("TRL", "`precompute_ref_log_probs`")
def test_reference_log_probabilities_are_computed_ahead_for_all(tmp_path):
    found = []
    for ahead in (False, True):
        sets = train_sets("preference")
        settings = {"precompute_ref_log_probs": ahead, "max_steps": 4, "dropout": 0.0}
        trainer = dpo(tmp_path, sets["a"], dev_sets("preference"), **settings)
        balance(trainer, sets, every=2, dev=dev_sets("preference"))
        assert all("ref_chosen_logps" in d.column_names for d in trainer.train_dataset.datasets.values()) == ahead
        trainer.train()
        found.append(mixtures(trainer))
    assert found[0].keys() == found[1].keys() == {2, 4}
    for step, mixture in found[0].items():
        assert found[1][step] == pytest.approx(mixture, abs=1e-4)


@pytest.mark.claim("TRL", "a selection of the dev sets, or other dev sets")
@pytest.mark.parametrize(("dev", "names"), [(["b"], ["b"]), ({"z": dev_sets()["a"]}, ["z"])], ids=["some", "others"])
def test_other_dev_sets_are_prepared_and_some_can_be_chosen(dev, names, tmp_path):
    trainer = sft(tmp_path, train_sets()["a"], dev_sets(), packing=True, max_steps=2)
    callback = balance(trainer, train_sets(), dev=dev, every=2)
    trainer.train()
    assert list(callback.balancer.history[0].dev_losses) == names


@pytest.mark.claim("TRL", "one dev set that is no dict")
def test_one_dev_set_needs_no_name(tmp_path, capsys):
    trainer = sft(tmp_path, train_sets()["a"], dev_sets()["a"], max_steps=4, eval_strategy="steps", eval_steps=3)
    callback = balance(trainer, train_sets(), every=2)
    trainer.train()
    assert [list(update.dev_losses) for update in callback.balancer.history] == [["dev"], ["dev"]]
    *_, evaluated = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert callback.balancer.dev_losses == {"dev": evaluated}
    assert "plan: " in capsys.readouterr().out


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_a_resumed_training_begins_with_where_it_is(rule, tmp_path, capsys):
    for resume in (None, True):
        trainer = sft(tmp_path, train_sets()["a"], dev_sets(), save_strategy="steps", save_steps=3)
        balance(trainer, train_sets(), every=2, rule=rule)
        capsys.readouterr()
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / "checkpoint-3"))
    assert capsys.readouterr().out.startswith("resumed at step 3; ")


def test_passes_are_limited_by_the_length_of_training(tmp_path):
    shares = {}
    for most in (4, 0.5):
        trainer = sft(tmp_path, train_sets()["a"], dev_sets())
        callback = balance(trainer, train_sets(), every=2, limits=Limits(max_passes=most))
        trainer.train()
        shares[most] = [callback.balancer.start["a"], *(m["a"] for m in list(mixtures(trainer).values())[:-1])]
    assert max(shares[0.5]) < 0.26  # half a pass over 12 of 24 examples
    assert min(shares[4]) > 0.35


@pytest.mark.claim("TRL", "datasets of both formats in one training")
@pytest.mark.parametrize("completions", [True, False])
def test_datasets_of_both_formats_need_a_setting(completions, tmp_path):
    sets = {**train_sets(), "d": rows("completion", 10, 1, "a")}
    trainer = sft(tmp_path, sets["a"], dev_sets(), completion_only_loss=completions, max_steps=2)
    balance(trainer, sets, every=2)
    assert (-100 in trainer.train_dataset.datasets["d"][0]["labels"]) == completions
    trainer.train()


def trained(folder, kind):
    processes = dist.get_world_size() if dist.is_initialized() else 1
    make, data, settings = KINDS[kind]
    settings = {**settings, "per_device_train_batch_size": 4 // processes, "optim": "sgd", "max_grad_norm": 0.0}
    trainer = make(folder, train_sets(data)["a"], dev_sets(data), **settings, dropout=0.0)
    probes = Probes(batches=4, count="in all")
    callback = balance(trainer, train_sets(data), every=2, batch_size=4, probes=probes)
    trainer.train()
    weights = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return [row["num_tokens"] for row in losses(trainer)], callback.mixture.probabilities, weights


@pytest.mark.claim("TRL", "**two processes** equal one with twice the batch: packing, DPO with LoRA")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wrapped", "preferences-lora"])
def test_two_processes_equal_one_with_twice_the_batch(kind, tmp_path):
    assert_ranks_equal_one_process(trained, tmp_path, arguments=[tmp_path, kind], tolerance=1e-5, fork=True)


@pytest.mark.claim("TRL", "settings that cannot be right are refused")
def test_settings_that_cannot_be_right_are_refused(tmp_path):
    sets = train_sets()
    trainer = sft(tmp_path, sets["a"], dev_sets())
    refused = partial(pytest.raises, (TypeError, ValueError))
    with refused(match="trainer .* str"):
        balance("trainer", sets)
    for given, options, message in (
        ([sets["a"]], {}, "train_sets .* list"),
        ({}, {}, "train_sets is empty"),
        ({**sets, "d": rows("completion", 5, 1, "a")}, {}, "'d' .* completion_only_loss"),
        ({**sets, "d": datasets.Dataset.from_dict({"text": ["w1"], "image": [b""]})}, {}, "images .* 'd'"),
        ({**sets, "d": sets["a"].to_iterable_dataset()}, {}, "train_sets .*'d'"),
        (sets, {"dev": ["nothing"]}, "dev 'nothing'"),
        ({**sets, "d": sets["a"].select([])}, {}, "train_sets: .* 'd'"),
        (sets, {"dev": {"z": sets["a"].select([])}}, "dev: .* 'z'"),
        (sets, {"every": 0}, "every .* 0"),
    ):
        with refused(match=message):
            balance(trainer, given, **options)
    assert isinstance(trainer.train_dataset, datasets.Dataset)  # as it was
    balance(trainer, sets, every=2)
    with refused(match="new trainer"):
        balance(trainer, sets)
    trainer = sft(tmp_path, sets["a"], dev_sets(), max_steps=1)
    trainer.train()
    with refused(match="1 steps"):
        balance(trainer, sets)


def prepare_otherwise(dataset, processing_class, args, dataset_name, recipe):
    raise AssertionError


@pytest.mark.parametrize(("method", "message"), [(prepare_otherwise, "'recipe'.* TRL 1"), (None, "_prepare_dataset")])
def test_another_version_of_trl_is_refused(method, message, tmp_path):
    trainer = dpo(tmp_path, train_sets("preference")["a"], dev_sets("preference"))
    trainer._prepare_dataset = method
    with pytest.raises(ValueError, match=message):
        balance(trainer, train_sets("preference"))
