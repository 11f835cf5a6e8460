"""Balancing inside the real trainers of sentence-transformers: draws, probes, resume and two processes."""

import json
import os
import pickle
import socket
from itertools import groupby

import pytest
import sentence_transformers_fit
import torch
from datasets import DatasetDict
from options_shown import check_help, check_signature
from ranks import leave
from sentence_transformers.base.sampler import ProportionalBatchSampler
from sentence_transformers.sentence_transformer import losses
from torch import nn
from toy_st import (
    SIZES,
    SentenceTransformerTrainer,
    Watched,
    arguments,
    dev_sets,
    labelled,
    model,
    pairs,
    train_sets,
    trainer_of,
)
from toy_trainers import lasting, mixtures

from multidds import Anchored, Balancer, Mixture, Scorer
from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches
from multidds.integrations.sentence_transformers.batches import probe_batches
from multidds.sampling.draws import Draws

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),  # on a CPU
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few cores
    pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning"),  # accelerate 1.15, torch 2.13
]
MOVING = {"scorer": Scorer(lr=2.0)}
STILL = {"scorer": Anchored(strength=0.0, plan=False)}  # the mixture stays, but updates are made


class Parts(nn.Module):
    """A loss of two parts, which the trainer logs each."""

    def __init__(self, model):
        super().__init__()
        self.model, self.ranking = model, losses.MultipleNegativesRankingLoss(model)
        self.calls = 0

    def forward(self, features, labels=None):
        self.calls += 1
        ranking = self.ranking(features, labels)
        return {"ranking": ranking, "size": self.model(features[0])["sentence_embedding"].square().mean()}


def owners(data):
    """{tokens of an anchor: (dataset, number)}."""
    embed = model()
    return {
        tuple(embed.tokenizer.encode(text, add_special_tokens=False).ids): (name, i)
        for name, rows in data.items()
        for i, text in enumerate(rows["anchor"])
    }


def drawn(trainer, data):
    """The batches that training has seen, as (dataset, numbers of its examples)."""
    known, found = owners(data), []
    for batch in trainer.seen:
        texts = [tuple(batch[i : i + 5]) for i in range(0, len(batch), 5)]  # StaticEmbedding has them in one row
        names = {known[text][0] for text in texts}
        assert len(names) == 1, "a batch of two datasets"
        found.append((names.pop(), [known[text][1] for text in texts]))
    return found


def simulated(count, moves):
    """The datasets of the first batches; `moves`: {position: mixture from there on}."""
    mixture = Mixture.proportional(SIZES)
    draws = Draws(mixture, seed=1)
    for position, probabilities in moves.items():
        mixture.move(probabilities)
        draws.use(mixture, position)
    return [draws.draw()[0] for _ in range(count)]


@pytest.mark.claim(
    "sentence-transformers",
    "**data-loader workers**, **gradient accumulation**: draws of the sequence, a fixed delay, whole passes",
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "max_steps": 12},
        {"dataloader_num_workers": 2, "batch_sampler": "no_duplicates"},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True},
    ],
    ids=str,
)
def test_each_batch_is_of_one_dataset_as_the_mixture_says(settings, tmp_path):
    data = train_sets()
    trainer, callback = trainer_of(tmp_path, every=3, data=data, settings=settings, **MOVING)
    trainer.train()
    lag = settings.get("dataloader_num_workers", 0) * settings.get("dataloader_prefetch_factor", 2) + 1
    accumulation = trainer.args.gradient_accumulation_steps
    moves = {step * accumulation + lag: mixture for step, mixture in mixtures(trainer).items()}
    batches = drawn(trainer, data)
    assert [name for name, _ in batches] == simulated(trainer.state.max_steps * accumulation, moves)
    assert len({tuple(mixture.values()) for mixture in moves.values()}) > 3
    for name, size in SIZES.items():
        numbers = [number for owner, batch in batches if owner == name for number in batch]
        assert callback._mixed.examples[name] == len(numbers)
        for start in range(0, len(numbers) - size + 1, size):  # pass by pass
            assert sorted(numbers[start : start + size]) == list(range(size))
        if len(numbers) >= 2 * size:
            assert numbers[:size] != numbers[size : 2 * size]  # in another order


@pytest.mark.claim("sentence-transformers", "`no_duplicates`, in probes too")
def test_no_duplicates_stays_true(tmp_path):
    data = train_sets(lambda size, seed: pairs(size, seed, repeated=True))
    settings = {"batch_sampler": "no_duplicates", "max_steps": 30}
    trainer, _ = trainer_of(tmp_path, data=data, settings=settings, **MOVING)
    trainer.train()
    for batch in trainer.seen:
        texts = [tuple(batch[i : i + 5]) for i in range(0, len(batch), 5)]
        assert len(set(texts)) == len(texts)
    source = probe_batches(trainer, data["a"], 4, trainer.data_collator)
    for seed in range(20):
        anchors = source(torch.Generator().manual_seed(seed))["anchor_input_ids"].view(-1, 5).tolist()
        assert len({tuple(anchor) for anchor in anchors}) == len(anchors)


CASES = {
    "one loss": {},
    "parts": {"loss": Parts},
    "cached": {"loss": lambda made: losses.CachedMultipleNegativesRankingLoss(made, mini_batch_size=2), "bert": True},
    "a loss for each": {"loss": {"a": Parts, "b": losses.MultipleNegativesRankingLoss, "c": Parts}},
}


@pytest.mark.claim(
    "sentence-transformers",
    "**metrics and logs untouched by probes**: one loss, a loss with parts, cached losses, a dict of losses",
)
@pytest.mark.parametrize("case", CASES)
def test_probes_change_nothing_that_is_counted_logged_or_learned(case, tmp_path):
    settings = {"max_steps": 6, "batch_sampler": "no_duplicates"}
    trained = []
    for every in (3, None):
        trainer, _ = trainer_of(tmp_path, every=every, settings=settings, **CASES[case], **STILL)
        trainer.train()
        trained.append(trainer)
    balanced, plain = trained
    assert len(mixtures(balanced)) == 2
    rows = [[row for row in lasting(t.state.log_history) if "loss" in row] for t in trained]
    assert str(rows[0]) == str(rows[1])  # a part that no batch had is nan
    assert ("ranking" in rows[0][0]) == (case not in ("one loss", "cached"))
    assert balanced.seen == plain.seen
    for p, expected in zip(balanced.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.claim("sentence-transformers", "losses with parameters")
def test_parameters_of_losses_are_probed_and_left_alone(tmp_path):
    def softmax(made):
        torch.manual_seed(1)
        return losses.SoftmaxLoss(made, sentence_embedding_dimension=6, num_labels=3)

    trained = []
    for every in (3, None):
        made = model()
        trainer = Watched(
            made,
            arguments(tmp_path, Mixture.proportional(SIZES), max_steps=6),
            train_dataset=train_sets(labelled),
            eval_dataset={"a": labelled(8, 9)},
            loss=softmax(made),
        )
        if every:
            callback = BalanceCallback(trainer, every, **STILL)
            trainer.add_callback(callback)
        trainer.train()
        trained.append(list(trainer.loss.parameters()))
    assert all(torch.equal(p, expected) for p, expected in zip(*trained, strict=True))
    assert set(trained[0]) == set(callback.balancer._prober.params)
    assert len(trained[0]) > len(list(model().parameters()))


@pytest.mark.claim("sentence-transformers", "**same result as a loop by hand**: an update equals that of a `Balancer`")
def test_an_update_is_that_of_a_balancer_by_hand(tmp_path):
    settings = {"max_steps": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer, callback = trainer_of(tmp_path, every=1, dropout=0.0, settings=settings, **MOVING)
    trainer.train()

    made, mixture = model(dropout=0.0), Mixture.proportional(SIZES)
    ranking, data, collate = losses.MultipleNegativesRankingLoss(made), train_sets(), trainer.data_collator

    def loss(model, batch):
        return ranking(*trainer.collect_features(batch))

    balancer = Balancer(
        mixture,
        made,
        loss,
        train={name: probe_batches(trainer, d, 4, collate) for name, d in data.items()},
        dev={name: probe_batches(trainer, d, 4, collate) for name, d in dev_sets().items()},
        every=1,
        seed=5,
        **MOVING,
    )
    ((name, numbers),) = drawn(trainer, data)
    loss(made, collate([data[name][i] for i in numbers])).backward()
    torch.optim.SGD(made.parameters(), lr=0.05).step()
    for p, expected in zip(trainer.model.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(p, expected, atol=1e-6, rtol=0)
    update = balancer.step()
    assert callback.balancer.history[0].rewards == pytest.approx(update.rewards, abs=1e-5)
    assert mixtures(trainer)[1] == pytest.approx(update.mixture, abs=1e-5)


@pytest.mark.claim(
    "sentence-transformers",
    "**exact resume**: at the end and in the middle of an epoch, accumulation, `no_duplicates`, workers, evaluations",
)
@pytest.mark.parametrize(
    ("settings", "save_steps"),
    [
        ({}, 7),  # the end of an epoch
        ({"gradient_accumulation_steps": 2, "batch_sampler": "no_duplicates"}, 4),
        ({"dataloader_num_workers": 2}, 9),
        ({"eval_strategy": "steps", "eval_steps": 4}, 16),
    ],
    ids=str,
)
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(settings, save_steps, tmp_path):
    settings = {**settings, "save_strategy": "steps", "save_steps": save_steps}
    whole, callback = trainer_of(tmp_path, settings=settings, priority="low", **MOVING)
    whole.train()
    resumed, again = trainer_of(tmp_path, settings=settings, priority="low", **MOVING)
    torch.manual_seed(99)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_steps}"))
    assert resumed.seen == whole.seen[save_steps * whole.args.gradient_accumulation_steps :]
    assert again.state() == callback.state()
    assert lasting(resumed.state.log_history) == lasting(whole.state.log_history)
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.claim(
    "sentence-transformers",
    "**datasets added or left out on resume**: refused, or gone on with as asked, one with less of its data",
)
@pytest.mark.parametrize("sampler", ["batch_sampler", "no_duplicates"])
def test_changed_data_is_refused_or_gone_on_with_as_asked(sampler, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 5, "batch_sampler": sampler}
    first, callback = trainer_of(tmp_path, settings={**settings, "max_steps": 10}, **MOVING)
    first.train()
    before, counts = callback.balancer.mixture.probabilities, callback.state()["attributes"]["dataset"]["examples"]
    data = {"b": pairs(22, 2), "d": pairs(20, 9), "c": train_sets()["c"]}  # of b there is less now

    def changed(**options):
        made = model()
        trainer = Watched(
            made,
            arguments(tmp_path, Mixture.proportional({name: len(d) for name, d in data.items()}), **settings),
            train_dataset=data,
            eval_dataset=dev_sets(),
            loss=losses.MultipleNegativesRankingLoss(made),
        )
        callback = BalanceCallback(trainer, 2, dev={"b": dev_sets()["b"]}, seed=5, **MOVING, **options)
        trainer.add_callback(callback)
        return trainer, callback

    with pytest.raises(ValueError, match="'d' is missing. Where the data were changed on purpose, changed_data=True"):
        changed()[0].train(resume_from_checkpoint=True)
    trainer, again = changed(changed_data=True)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 20
    update = again.balancer.history[0]
    assert update.step == 12
    assert update.before["d"] == pytest.approx(20 / 57)
    assert update.before["b"] / update.before["c"] == pytest.approx(before["b"] / before["c"])
    names = [name for name, _ in drawn(trainer, data)]
    assert len(names) == 10
    assert "d" in names
    state = again.state()["attributes"]["dataset"]
    assert state["examples"]["c"] >= counts["c"]
    assert sum(state["examples"].values()) > counts["b"] + counts["c"]

    plain, third = changed()
    plain.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert plain.seen == trainer.seen[5:]
    assert third.state() == again.state()


def test_a_second_training_begins_anew(tmp_path):
    trainer, callback = trainer_of(tmp_path, settings={"max_steps": 4}, **MOVING)
    trainer.train()
    first, trainer.seen = trainer.seen, []
    moved = callback.balancer.mixture.probabilities
    trainer.train()
    assert trainer.seen[:3] == first[:3]
    assert mixtures(trainer).keys() == {2, 4}
    assert moved != Mixture.proportional(SIZES).probabilities


@pytest.mark.claim("sentence-transformers", "**static mixture without the callback**, with exact resume")
def test_a_static_mixture_needs_no_callback_and_resumes_exactly(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 9, "max_steps": 32}
    whole, _ = trainer_of(tmp_path, every=None, settings=settings)
    whole.train()
    assert [name for name, _ in drawn(whole, train_sets())] == simulated(32, {})
    for step in (9, 18):
        resumed, _ = trainer_of(tmp_path, every=None, settings=settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert resumed.seen == whole.seen[step:]
    saved = torch.load(tmp_path / "checkpoint-9" / "training_args.bin", weights_only=False)
    assert saved.multi_dataset_batch_sampler.mixture.probabilities == Mixture.proportional(SIZES).probabilities


def test_other_dev_sets_and_other_evaluations(tmp_path):
    each = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    trainer, callback = trainer_of(tmp_path, loss=each, dev={"c": pairs(8, 3)}, settings={"max_steps": 2})
    trainer.train()
    assert list(callback.balancer.history[0].dev_losses) == ["c"]
    state = callback.state()
    loader = trainer.get_eval_dataloader(DatasetDict(dev_sets()))  # not the training's: drawn as ever
    assert type(loader.batch_sampler) is ProportionalBatchSampler
    assert len(list(loader)) == 2
    assert callback.state() == state
    given = pairs(8, 3)
    with pytest.raises(
        ValueError, match=r"^BalanceCallback: the dev sets \['z'\] have no loss of their name; the losses"
    ):
        trainer_of(tmp_path, loss=each, dev={"z": given})
    assert given.format["type"] is None  # the user's own object is as it was


class Looking(losses.MultipleNegativesRankingLoss):
    """Says through which model it was computed."""

    calls = ()

    def forward(self, features, labels=None):
        Looking.calls += (type(self.model).__name__,)
        return super().forward(features, labels)


def one_rank(rank, folder):
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "ACCELERATE_USE_CPU": "true"}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (folder / "port").read_text(), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({key: str(value) for key, value in places.items()})
    torch.set_num_threads(1)
    short = trained_on(folder / "short", batches=2)
    settings = {"save_strategy": "steps", "save_steps": 5, "max_steps": 12, "dataloader_drop_last": True}
    whole, callback = trainer_of(folder / "long", loss=Looking, dropout=0.0, settings=settings, **MOVING)
    whole.train()
    wrapped, bare = "DistributedDataParallel", "SentenceTransformer"  # two steps, then the probes of an update
    turns = [(name, len(list(calls))) for name, calls in groupby(Looking.calls)]
    assert turns[::2] == [(wrapped, 2)] * 6
    assert [name for name, _ in turns[1::2]] == [bare] * 6
    assert type(whole.loss.model).__name__ == wrapped
    resumed, again = trainer_of(folder / "long", dropout=0.0, settings=settings, **MOVING)
    resumed.train(resume_from_checkpoint=str(folder / "long" / "checkpoint-5"))
    assert resumed.seen == whole.seen[5:]
    assert again.state() == callback.state()
    for p, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, expected)
    found = [short, drawn(whole, train_sets()), mixtures(whole), callback.state()]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()


def trained_on(folder, batches, **settings):
    """A training that ends with its first update: one process with accumulation reads less far ahead "
    "than two."""
    fixed = {"max_steps": 3, "optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "dataloader_drop_last": True}
    parts = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    made = {"every": 3, "dropout": 0.0, "loss": parts, "batches": batches, "scorer": Anchored(plan=False)}
    trainer, callback = trainer_of(folder, settings={**fixed, **settings}, **made)
    trainer.train()
    weights = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return mixtures(trainer)[3], weights, callback.balancer.history[0].noise


@pytest.mark.claim(
    "sentence-transformers", "**two processes**: one sequence, equal to one process with accumulation, exact resume"
)
@pytest.mark.slow
def test_two_processes_share_one_sequence_of_batches(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    torch.multiprocessing.start_processes(one_rank, (tmp_path,), nprocs=2, start_method="fork")
    (short, first, moves, state), (other, second, *same) = (
        json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)
    )
    assert other == short
    assert same == [moves, state]
    names = [name for pair in zip(first, second, strict=True) for name, _ in pair]
    assert names == simulated(24, {2 * int(step) + 2: mixture for step, mixture in moves.items()})
    mixture, weights, noise = trained_on(tmp_path / "one", batches=4, gradient_accumulation_steps=2)
    assert short[0] == pytest.approx(mixture, abs=1e-5)
    assert short[2] == pytest.approx(noise, abs=1e-5)
    for name, values in weights.items():
        torch.testing.assert_close(torch.tensor(short[1][name]), torch.tensor(values), atol=1e-5, rtol=0)


@pytest.mark.claim("sentence-transformers", "settings that cannot be right are refused")
def test_what_cannot_be_right_is_refused_with_what_to_change(tmp_path):
    made, mixture = model(), Mixture.proportional(SIZES)

    def trainer(data=None, names=mixture, **settings):
        args = arguments(tmp_path, names, **settings)
        return SentenceTransformerTrainer(made, args, train_dataset=data or train_sets(), eval_dataset=dev_sets())

    def refused(error, message, given, **options):
        with pytest.raises(error, match=message):
            BalanceCallback(given, 2, **options)

    refused(
        TypeError, "^BalanceCallback: the first argument must be a trainer of sentence-transformers, got str.$", "x"
    )
    one = trainer(train_sets()["a"])
    refused(TypeError, r"^BalanceCallback: train_dataset must be \{name: dataset\}, got Dataset.$", one)
    own = trainer(multi_dataset_batch_sampler="round_robin")
    refused(TypeError, r"multi_dataset_batch_sampler must be mixed_batches\(mixture\) in the", own)
    refused(ValueError, "^mixed_batches: 'd' is missing.$", trainer(names=Mixture.uniform("abcd")))
    dispatched = trainer(accelerator_config={"dispatch_batches": True})
    refused(ValueError, "^BalanceCallback: dispatch_batches=True in accelerator_config is not", dispatched)
    refused(ValueError, "the dev sets 'x' are missing from eval_dataset; it has 'a', 'b'.", trainer(), dev=["x"])
    twice = trainer()
    twice.add_callback(BalanceCallback(twice, 2))
    refused(ValueError, "^BalanceCallback: the trainer has one already; remove it", twice)


@pytest.mark.claim("sentence-transformers", "settings that cannot be right are refused")
def test_loaders_that_cannot_be_right_are_refused(tmp_path):
    tiny, _ = trainer_of(tmp_path, data={**train_sets(), "a": pairs(3, 0)}, settings={"dataloader_drop_last": True})
    with pytest.raises(ValueError, match="^mixed_batches: the batch sampler makes no batch of 'a': .*_drop_last=False"):
        tiny.train()

    class Other(Watched):
        def get_multi_dataset_batch_sampler(self, dataset, batch_samplers, generator=None, seed=0):
            raise AssertionError

        def get_train_dataloader(self):
            return self.accelerator.prepare(torch.utils.data.DataLoader([1, 2]))

    other = Other(
        model(), arguments(tmp_path, Mixture.proportional(SIZES)), train_dataset=train_sets(), eval_dataset=dev_sets()
    )
    other.add_callback(BalanceCallback(other, 2))
    with pytest.raises(
        ValueError, match="^BalanceCallback: the loader of get_train_dataloader does not read mixed_bat"
    ):
        other.train()
    each = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    data = {name: train_sets()[name] for name in "cab"}
    swapped, _ = trainer_of(tmp_path, every=None, loss=each, data=data)
    with pytest.raises(ValueError, match=r"names \['a', 'b', 'c'\], but the datasets are \['c', 'a', 'b'\], in this"):
        swapped.train()
    fewer, _ = trainer_of(tmp_path, every=None, data={name: train_sets()[name] for name in "ab"})
    with pytest.raises(ValueError, match="^mixed_batches: the mixture has 3 names, but there are 2 datasets.$"):
        fewer.train()
    reordered, callback = trainer_of(tmp_path, data=data, settings={"max_steps": 2})  # a callback knows the names
    reordered.train()
    assert {name for name, _ in drawn(reordered, data)} <= set("abc")
    assert callback._mixed.sizes == {name: SIZES[name] for name in "cab"}


def test_the_arguments_can_be_saved_and_loaded(tmp_path):
    again = pickle.loads(pickle.dumps(mixed_batches(Mixture({"a": 0.2, "b": 0.8}), seed=4)))
    assert again.mixture.probabilities == {"a": 0.2, "b": 0.8}


def test_every_option_is_shown_and_documented():
    check_signature(BalanceCallback)
    check_help(BalanceCallback)


@pytest.mark.slow
def test_the_example_draws_what_helps_more_often(capsys):
    found = sentence_transformers_fit.main(steps=100)
    assert found["learned"]["rare"] > found["proportional"]["rare"] + 0.1
    learned = capsys.readouterr().out.splitlines()[-1].split()
    assert float(learned[-1].rstrip("%")) < 69 / 3  # the share of the junk
