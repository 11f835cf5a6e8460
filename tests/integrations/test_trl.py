"""Balancing inside the real trainers of TRL: what they count and log stays theirs, and a resume is exact."""

import json
import os
import socket

import datasets
import pytest
import torch
import trl_sft
from options_shown import check_help, check_signature
from ranks import leave
from toy_trainers import lasting, mixtures
from toy_trl import SIZES, dev_sets, dpo, reward, rows, sft, train_sets

from multidds import Anchored, Mixture, MixtureSampler, Scorer
from multidds.integrations.trl import balance

STILL = {"scorer": Anchored(strength=0.0, plan=False)}  # the mixture stays, but updates are made

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
    """What the trainer logs of its training, without times."""
    return [row for row in lasting(trainer.state.log_history) if "loss" in row]


def without_epochs(found):
    return [{key: value for key, value in row.items() if key != "epoch"} for row in found]


def same_parameters(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.claim(
    "TRL",
    "**same result as a loop by hand**, **metrics and logs untouched by probes**, **gradient "
    "accumulation**, **LoRA (PEFT)**: every loss, token count, accuracy and reward that TRL logs, and "
    "every weight, is that of plain TRL on the same examples: SFT, completion-only loss, packing (both "
    "strategies), LoRA, DPO, DPO with LoRA, reward models",
)
@pytest.mark.parametrize("kind", KINDS)
def test_it_counts_and_logs_what_trl_does_on_the_same_examples(kind, tmp_path):
    make, data, settings = KINDS[kind]
    balanced = make(tmp_path, train_sets(data)["b"], dev_sets(data), **settings)
    callback = balance(balanced, train_sets(data), every=3, seed=3, **STILL)
    prepared, sizes = balanced.train_dataset.datasets, balanced.train_dataset.sizes
    balanced.train()
    assert len(callback.balancer.history) == 2
    assert callback.balancer.mixture.probabilities == pytest.approx(Mixture.proportional(sizes).probabilities)

    count = 6 * balanced.args.gradient_accumulation_steps * 4
    indices = iter(MixtureSampler(sizes, Mixture.proportional(sizes), seed=3))
    everything = datasets.concatenate_datasets(list(prepared.values()))
    drawn = everything.select([next(indices) for _ in range(count)])
    if make is sft:
        settings = {**settings, "dataset_kwargs": {"skip_prepare_dataset": True}}
    plain = make(
        tmp_path, drawn, dev_sets(data) if make is dpo else None, **settings, train_sampling_strategy="sequential"
    )
    plain.train()
    assert len(losses(plain)) == 6
    assert "num_tokens" in losses(plain)[0]
    assert without_epochs(losses(balanced)) == without_epochs(losses(plain))
    assert same_parameters(balanced, plain)


@pytest.mark.claim(
    "TRL",
    "**exact resume**, **data-loader workers**: packing, LoRA, DPO with LoRA, completion-only loss with two workers",
)
@pytest.mark.parametrize("kind", ["packed", "lora", "preferences-lora", "workers"])
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(kind, tmp_path):
    make, data, settings = KINDS[kind]
    settings = {**settings, "save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2}

    def made():
        trainer = make(tmp_path, train_sets(data)["a"], dev_sets(data), **settings)
        return trainer, balance(trainer, train_sets(data), every=2, priority="low", scorer=Scorer(lr=2.0))

    whole, callback = made()
    whole.train()
    resumed, again = made()
    torch.manual_seed(99)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.state() == callback.state()
    assert mixtures(resumed) == mixtures(whole)
    assert len({tuple(mixture.values()) for mixture in mixtures(whole).values()}) == 3
    assert [row["loss"] for row in losses(resumed)] == [row["loss"] for row in losses(whole)]
    assert same_parameters(resumed, whole)


@pytest.mark.claim("TRL", "**datasets added or left out on resume**: refused, or gone on with as asked")
def test_changed_data_is_refused_or_gone_on_with_as_asked(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 3}

    def made(names, **options):
        sets = train_sets()
        trainer = sft(tmp_path, sets["a"], dev_sets(), **settings)
        return trainer, balance(trainer, {n: sets[n] for n in names}, every=2, scorer=Scorer(lr=2.0), **options)

    first, _ = made("ab")
    first.train()
    before = mixtures(first)[2]
    with pytest.raises(ValueError, match="'c' is missing. Where the data were changed on purpose, changed_data=True"):
        made("abc")[0].train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    trainer, again = made("abc", changed_data=True)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    update = again.balancer.history[0]
    assert update.step == 4
    assert update.before["c"] == pytest.approx(20 / 62)
    assert update.before["a"] / update.before["b"] == pytest.approx(before["a"] / before["b"])
    assert mixtures(trainer)[6].keys() == {"a", "b", "c"}


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
def test_other_dev_sets_are_prepared_and_some_can_be_chosen(tmp_path):
    for dev, names in ((["b"], ["b"]), ({"z": dev_sets()["a"]}, ["z"])):
        trainer = sft(tmp_path, train_sets()["a"], dev_sets(), packing=True, max_steps=2)
        callback = balance(trainer, train_sets(), dev=dev, every=2)
        trainer.train()
        assert list(callback.balancer.history[0].dev_losses) == names


@pytest.mark.claim("TRL", "**streams**, with exact resume")
def test_streams_are_prepared_and_mixed(tmp_path):
    streams = {name: d.to_iterable_dataset() for name, d in train_sets().items()}
    trained = []
    for checkpoint in (None, str(tmp_path / "checkpoint-2")):
        trainer = sft(tmp_path, streams["a"], dev_sets(), max_steps=4, save_strategy="steps", save_steps=2)
        balance(trainer, streams, every=2)
        trainer.train(resume_from_checkpoint=checkpoint)
        trained.append(trainer)
    whole, resumed = trained
    assert mixtures(resumed) == mixtures(whole)
    assert mixtures(whole).keys() == {2, 4}
    assert same_parameters(resumed, whole)


def one_rank(rank, folder, kind):
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "ACCELERATE_USE_CPU": "true"}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (folder / "port").read_text(), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({key: str(value) for key, value in places.items()})
    torch.set_num_threads(1)
    (folder / f"{rank}.json").write_text(json.dumps(trained_on(folder / "out", kind, batch_size=2)))
    leave()


def trained_on(folder, kind, batch_size):
    make, data, settings = KINDS[kind]
    settings = {**settings, "per_device_train_batch_size": batch_size, "optim": "sgd", "max_grad_norm": 0.0}
    trainer = make(folder, train_sets(data)["a"], dev_sets(data), **settings, dropout=0.0)
    callback = balance(trainer, train_sets(data), every=2, batch_size=4, batches=batch_size)
    trainer.train()
    counted = [row["num_tokens"] for row in losses(trainer)]
    weights = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return counted, callback.balancer.mixture.probabilities, weights


@pytest.mark.claim("TRL", "**two processes** equal one with twice the batch: packing, DPO with LoRA")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wrapped", "preferences-lora"])
def test_two_processes_equal_one_with_twice_the_batch(kind, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    torch.multiprocessing.start_processes(one_rank, (tmp_path, kind), nprocs=2, start_method="fork")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    counted, mixture, weights = trained_on(tmp_path / "one", kind, batch_size=4)
    assert ranks[0][0] == counted
    assert ranks[0][1] == pytest.approx(mixture, abs=1e-5)
    for name, values in weights.items():
        torch.testing.assert_close(torch.tensor(ranks[0][2][name]), torch.tensor(values), atol=1e-5, rtol=0)


@pytest.mark.claim("TRL", "settings that cannot be right are refused")
def test_what_cannot_be_right_is_refused_with_what_to_change(tmp_path):
    sets = train_sets()

    def refused(error, message, trainer, given, **options):
        with pytest.raises(error, match=message):
            balance(trainer, given, every=2, **options)

    trainer = sft(tmp_path, sets["a"], dev_sets())
    refused(TypeError, "^balance: the first argument must be one of TRL's SFTTrainer, .* got str.$", "trainer", sets)
    refused(TypeError, r"^balance: train_sets must be \{name: dataset\}, got list.$", trainer, [sets["a"]])
    refused(ValueError, "^balance: train_sets is empty.$", trainer, {})
    mixed = {**sets, "d": rows("completion", 5, 1, "a")}
    refused(
        ValueError, r"^balance: some datasets .* others \('d'\) .* Set completion_only_loss=True or", trainer, mixed
    )
    pictures = {**sets, "d": datasets.Dataset.from_dict({"text": ["w1"], "image": [b""]})}
    refused(ValueError, "^balance: datasets with images are not supported: 'd'.$", trainer, pictures)
    streams = {**sets, "d": sets["a"].to_iterable_dataset()}
    refused(
        ValueError, r"^balance: some datasets are streams \('d'\), but .* Make it with one of the", trainer, streams
    )
    refused(ValueError, "the dev sets 'nothing' are missing", trainer, sets, dev=["nothing"])
    assert isinstance(trainer.train_dataset, datasets.Dataset)  # as it was
    balance(trainer, sets, every=2)
    refused(ValueError, "^balance: it was called for this trainer before; make a new trainer.$", trainer, sets)
    trainer = sft(tmp_path, sets["a"], dev_sets(), max_steps=1)
    trainer.train()
    refused(ValueError, "^balance: the trainer has made 1 steps already. Call it between", trainer, sets)


def test_another_trl_is_refused_by_what_it_lacks(tmp_path, monkeypatch):
    def prepare(dataset, processing_class, args, dataset_name, recipe):
        raise AssertionError

    trainer = dpo(tmp_path, train_sets("preference")["a"], dev_sets("preference"))
    trainer._prepare_dataset = prepare
    with pytest.raises(ValueError, match="^balance: _prepare_dataset of DPOTrainer wants 'recipe', .* TRL 1.* 1.16 is"):
        balance(trainer, train_sets("preference"))
    trainer._prepare_dataset = None
    with pytest.raises(ValueError, match="^balance: DPOTrainer has no method _prepare_dataset. This is TRL"):
        balance(trainer, train_sets("preference"))


@pytest.mark.claim("TRL", "datasets of both formats in one training")
def test_sets_of_both_formats_work_where_the_settings_say_how(tmp_path):
    sets = {**train_sets(), "d": rows("completion", 10, 1, "a")}
    for only, masked in ((True, True), (False, False)):
        trainer = sft(tmp_path, sets["a"], dev_sets(), completion_only_loss=only, max_steps=2)
        balance(trainer, sets, every=2)
        assert (-100 in trainer.train_dataset.datasets["d"][0]["labels"]) == masked
        trainer.train()
    assert SIZES.keys() < trainer.train_dataset.datasets.keys()


def test_every_option_is_shown_and_documented():
    check_signature(balance, own=["seed"])
    check_help(balance)


@pytest.mark.slow
def test_the_example_leaves_the_tables_to_others(capsys):
    losses = trl_sft.main(steps=40)
    assert losses["learned"]["manual"] < losses["proportional"]["manual"] - 0.1
    learned = capsys.readouterr().out.splitlines()[-1].split()
    assert float(learned[-1].rstrip("%")) < 64.5 / 3  # the share of the tables, of which there are most
