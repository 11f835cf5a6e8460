"""Balancing inside the real trainers of sentence-transformers: draws, probes, resume and two processes."""

import pickle
import re
from functools import partial
from itertools import groupby

import pytest
import torch
import torch.distributed as dist
from assertions import assert_equal, assert_ranks_equal_one_process
from datasets import DatasetDict
from sentence_transformers.base.sampler import ProportionalBatchSampler
from sentence_transformers.sentence_transformer import losses
from torch import nn
from toy_st import SIZES, Watched, dev_sets, labelled, model, pairs, train_sets, trainer_of
from toy_trainers import MOVING, QUIET, STILL, assert_resumes, lasting, mixtures, same_parameters

from multidds import Balancer, Limits, Mixture, Probes
from multidds.integrations.sentence_transformers import BalanceCallback, mixed_batches
from multidds.integrations.sentence_transformers.batches import probe_batches
from multidds.rules import RelevancePlan, paper
from multidds.sampling import Draws

pytestmark = QUIET


@pytest.mark.claim("sentence-transformers", "one dev set that is no dict")
def test_one_dev_set_needs_no_name(tmp_path, capsys):
    settings = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps"}
    options = {"rule": RelevancePlan(), "settings": settings}
    trainer, callback = trainer_of(tmp_path, eval_dataset=pairs(8, 10), **options)
    trainer.train()
    line = capsys.readouterr().out
    assert re.search(rf"plan: .* · 2 updates, .* in mixture.jsonl in {tmp_path}; multidds report {tmp_path}", line)
    assert list(callback.balancer.history[-1].dev_losses) == ["dev"]
    *_, evaluated = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert callback.balancer.dev_losses == {"dev": evaluated}
    named, _ = trainer_of(tmp_path, eval_dataset={"dev": pairs(8, 10)}, **options)
    named.train()
    assert mixtures(named) == mixtures(trainer)


@pytest.mark.parametrize("rule", [RelevancePlan(), paper()])
def test_a_resumed_training_begins_with_where_it_is(rule, tmp_path, capsys):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    for resume in (None, True):
        trainer, _ = trainer_of(tmp_path, rule=rule, settings=settings)
        capsys.readouterr()
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / "checkpoint-3"))
    assert capsys.readouterr().out.startswith("resumed at step 3; ")


def test_another_priority_at_a_resume_counts_and_a_line_says_so(tmp_path, caplog):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    trainer_of(tmp_path, settings=settings)[0].train()
    trainer, callback = trainer_of(tmp_path, settings=settings, priority={"a": 1.0})
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert callback.balancer.history[-1].weights == {"a": 1.0, "b": 0.0}
    assert "regular" in caplog.text


def test_a_dev_set_that_is_a_training_set_is_said(tmp_path, caplog):
    data = DatasetDict(train_sets())
    trainer, _ = trainer_of(tmp_path, data=data, eval_dataset=data["b"], settings={"max_steps": 1})
    trainer.train()
    assert "dev set 'dev' and the dataset 'b' are the same data" in caplog.text


class Parts(nn.Module):
    """A loss of two parts, each of which the trainer logs."""

    def __init__(self, model):
        super().__init__()
        self.model, self.ranking = model, losses.MultipleNegativesRankingLoss(model)
        self.calls = 0

    def forward(self, features, labels=None):
        self.calls += 1
        ranking = self.ranking(features, labels)
        return {"ranking": ranking, "size": self.model(features[0])["sentence_embedding"].square().mean()}


def texts(batch):
    return [tuple(batch[i : i + 5]) for i in range(0, len(batch), 5)]  # StaticEmbedding has them in one row


def drawn(trainer, data):
    """The batches that training has seen, as (dataset, numbers of its examples)."""
    encode = model().tokenizer.encode
    owners = {
        tuple(encode(text, add_special_tokens=False).ids): (name, i)
        for name, rows in data.items()
        for i, text in enumerate(rows["anchor"])
    }
    found = []
    for batch in trainer.seen:
        names = {owners[text][0] for text in texts(batch)}
        assert len(names) == 1, "a batch of two datasets"
        found.append((names.pop(), [owners[text][1] for text in texts(batch)]))
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
        {"gradient_accumulation_steps": 2, "max_steps": 12},
        {"dataloader_num_workers": 2, "batch_sampler": "no_duplicates"},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True},
    ],
    ids=str,
)
def test_each_batch_is_of_one_dataset_drawn_from_the_mixture(settings, tmp_path):
    data = train_sets()
    trainer, callback = trainer_of(tmp_path, every=3, data=data, settings=settings)
    trainer.train()
    lag = settings.get("dataloader_num_workers", 0) * settings.get("dataloader_prefetch_factor", 2) + 1
    accumulation = trainer.args.gradient_accumulation_steps
    moves = {step * accumulation + lag: mixture for step, mixture in mixtures(trainer).items()}
    batches = drawn(trainer, data)
    assert [name for name, _ in batches] == simulated(trainer.state.max_steps * accumulation, moves)
    assert len({tuple(mixture.values()) for mixture in moves.values()}) > 3
    for name, size in SIZES.items():
        numbers = [number for owner, batch in batches if owner == name for number in batch]
        assert callback.state()["attributes"]["dataset"]["examples"][name] == len(numbers)
        for start in range(0, len(numbers) - size + 1, size):  # pass by pass
            assert sorted(numbers[start : start + size]) == list(range(size))
        if len(numbers) >= 2 * size:
            assert numbers[:size] != numbers[size : 2 * size]  # in another order


@pytest.mark.claim("sentence-transformers", "`no_duplicates`, in probes too")
def test_no_duplicates_holds_in_training_and_probes(tmp_path):
    data = train_sets(lambda size, seed: pairs(size, seed, repeated=True))
    settings = {"batch_sampler": "no_duplicates", "max_steps": 30}
    trainer, _ = trainer_of(tmp_path, data=data, settings=settings)
    trainer.train()
    source = probe_batches(trainer, data["a"], 4, trainer.data_collator)
    probes = [source(torch.Generator().manual_seed(seed))["anchor_input_ids"].tolist() for seed in range(20)]
    for batch in [*trainer.seen, *probes]:
        assert len(set(texts(batch))) == len(texts(batch))


CASES = {
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
    for every in (3, 0):
        trainer, _ = trainer_of(tmp_path, every=every, settings=settings, **CASES[case], **STILL)
        trainer.train()
        trained.append(trainer)
    balanced, plain = trained
    assert len(mixtures(balanced)) == 2
    rows = [[row for row in lasting(t.state.log_history) if "loss" in row] for t in trained]
    assert str(rows[0]) == str(rows[1])  # a part that no batch had is nan
    assert ("ranking" in rows[0][0]) == (case != "cached")
    assert balanced.seen == plain.seen
    assert same_parameters(balanced, plain)


@pytest.mark.claim("sentence-transformers", "losses with parameters")
def test_parameters_of_losses_are_probed_and_left_alone(tmp_path):
    def softmax(made):
        torch.manual_seed(1)
        return losses.SoftmaxLoss(made, sentence_embedding_dimension=6, num_labels=3)

    trained = []
    for every in (3, 0):
        own = {"loss": softmax, "data": train_sets(labelled), "eval_dataset": {"a": labelled(8, 9)}}
        trainer, callback = trainer_of(tmp_path, every, settings={"max_steps": 6}, **own, **STILL)
        trainer.train()
        trained.append(list(trainer.loss.parameters()))
        if every:  # moved, they are new to the balancer; those of the model alone would not be
            trainer.loss.classifier.weight = nn.Parameter(trainer.loss.classifier.weight.detach().clone())
            assert callback.balancer.parameters_changed
    assert all(torch.equal(p, expected) for p, expected in zip(*trained, strict=True))


@pytest.mark.claim("sentence-transformers", "**same result as a loop by hand**: an update equals that of a `Balancer`")
def test_update_is_that_of_a_balancer_by_hand(tmp_path):
    settings = {"max_steps": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer, callback = trainer_of(tmp_path, every=1, dropout=0.0, settings=settings)
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
    assert_equal(list(trainer.model.parameters()), list(made.parameters()), tolerance=1e-6)
    update = balancer.step()
    assert_equal(callback.balancer.history[0].rewards, update.rewards, tolerance=1e-5)
    assert_equal(mixtures(trainer)[1], update.mixture, tolerance=1e-5)


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
def test_resume_is_exact(settings, save_steps, tmp_path):
    settings = {**settings, "save_strategy": "steps", "save_steps": save_steps}
    made = partial(trainer_of, tmp_path, settings=settings, priority="low")
    assert_resumes(made, tmp_path / f"checkpoint-{save_steps}")
    other, _ = made(data={**train_sets(), "a": pairs(11, 1)})
    with pytest.raises(ValueError, match="10 examples of 'a', not 11"):
        other.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_steps}"))


def test_second_training_begins_anew(tmp_path):
    trainer, callback = trainer_of(tmp_path, settings={"max_steps": 4})
    trainer.train()
    first, trainer.seen = trainer.seen, []
    assert callback.mixture.probabilities != Mixture.proportional(SIZES).probabilities
    trainer.train()
    assert trainer.seen[:3] == first[:3]
    assert mixtures(trainer).keys() == {2, 4}


@pytest.mark.claim("sentence-transformers", "**static mixture without the callback**, with exact resume")
def test_static_mixture_needs_no_callback_and_resumes_exactly(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 9, "max_steps": 32}
    whole, _ = trainer_of(tmp_path, every=0, settings=settings)
    whole.train()
    batches = drawn(whole, train_sets())
    assert [name for name, _ in batches] == simulated(32, {})
    ahead = 1  # a batch that the loader has read to find out whether the last is the last
    counted = whole.args.multi_dataset_batch_sampler.examples
    assert 0 < sum(counted.values()) - sum(len(numbers) for _, numbers in batches) <= ahead * 4
    assert whole.args.multi_dataset_batch_sampler.passes == {name: counted[name] / SIZES[name] for name in SIZES}
    for step in (9, 18):
        resumed, _ = trainer_of(tmp_path, every=0, settings=settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert resumed.seen == whole.seen[step:]
    saved = torch.load(tmp_path / "checkpoint-9" / "training_args.bin", weights_only=False)
    assert saved.multi_dataset_batch_sampler.mixture.probabilities == Mixture.proportional(SIZES).probabilities


def test_passes_are_limited_by_the_length_of_training(tmp_path):
    passes = {}
    for most in (None, 0.5):
        limits = Limits(max_passes={"a": most} if most else None)
        trainer, _ = trainer_of(tmp_path, limits=limits, **STILL)
        trainer.train()
        passes[most] = trainer.args.multi_dataset_batch_sampler.passes["a"]
    assert passes[0.5] < 0.9 < passes[None]


def test_other_dev_sets_and_other_evaluations(tmp_path):
    each = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    trainer, callback = trainer_of(tmp_path, loss=each, dev={"c": pairs(8, 3)}, settings={"max_steps": 2})
    trainer.train()
    assert list(callback.balancer.history[0].dev_losses) == ["c"]
    state = callback.state()
    loader = trainer.get_eval_dataloader(DatasetDict(dev_sets()))  # not the training's: drawn as by default
    assert type(loader.batch_sampler) is ProportionalBatchSampler
    assert len(list(loader)) == 2
    assert callback.state() == state
    given = pairs(8, 3)
    with pytest.raises(ValueError, match="dev 'z' has no loss .*'a', 'b', 'c'"):
        trainer_of(tmp_path, loss=each, dev={"z": given})
    assert given.format["type"] is None  # the user's own object is as it was


@pytest.mark.claim("sentence-transformers", "settings that cannot be right are refused")
@pytest.mark.parametrize(
    ("data", "settings", "options", "message"),
    [
        (train_sets()["a"], {}, {}, "train_dataset .* Dataset"),
        (None, {"multi_dataset_batch_sampler": "round_robin"}, {}, "multi_dataset_batch_sampler .*ROUND_ROBIN"),
        ({**train_sets(), "d": pairs(4, 0)}, {}, {}, "mixed_batches: 'd'"),
        (None, {"accelerator_config": {"dispatch_batches": True}}, {}, "dispatch_batches=True"),
        (None, {}, {"dev": ["x"]}, "dev 'x' .* 'a', 'b'"),
        (None, {}, {"dev": {"a": pairs(8, 3), "b": pairs(0, 3)}}, "dev: .* 'b'"),
    ],
    ids=["one dataset", "another sampler", "names", "dispatch", "dev", "empty"],
)
def test_settings_that_cannot_be_right_are_refused(data, settings, options, message, tmp_path):
    trainer, _ = trainer_of(tmp_path, every=0, data=data, settings=settings)
    with pytest.raises((TypeError, ValueError), match=message):
        BalanceCallback(trainer, 2, **options)


def test_one_callback_for_one_trainer(tmp_path):
    with pytest.raises(TypeError, match="trainer .* str"):
        BalanceCallback("x", 2)
    trainer, _ = trainer_of(tmp_path)
    with pytest.raises(ValueError, match="remove_callback"):
        BalanceCallback(trainer, 2)


class OtherLoader(Watched):
    def get_train_dataloader(self):
        return self.accelerator.prepare(torch.utils.data.DataLoader([1, 2]))


@pytest.mark.claim("sentence-transformers", "settings that cannot be right are refused")
def test_loaders_that_cannot_be_right_are_refused(tmp_path):
    each = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    swapped = {name: train_sets()[name] for name in "cab"}
    small = {**train_sets(), "a": pairs(3, 0)}
    fewer = {name: train_sets()[name] for name in "ab"}
    for options, message in (
        ({"data": small, "settings": {"dataloader_drop_last": True}}, "'a'.* dataloader_drop_last=False"),
        ({"kind": OtherLoader}, "get_train_dataloader"),
        ({"every": 0, "loss": each, "data": swapped}, r"\['a', 'b', 'c'\], .*\['c', 'a', 'b'\]"),
        ({"every": 0, "data": fewer}, r"\['a', 'b', 'c'\], .* 2 datasets"),
    ):
        trainer, _ = trainer_of(tmp_path, **options)
        with pytest.raises(ValueError, match=message):
            trainer.train()
    reordered, _ = trainer_of(tmp_path, data=swapped, settings={"max_steps": 2})  # a callback has the names
    reordered.train()
    assert {name for name, _ in drawn(reordered, swapped)} <= set("abc")


def test_arguments_can_be_saved_and_loaded():
    again = pickle.loads(pickle.dumps(mixed_batches(Mixture({"a": 0.2, "b": 0.8}), seed=4)))
    assert again.mixture.probabilities == {"a": 0.2, "b": 0.8}


class Through(losses.MultipleNegativesRankingLoss):
    """Records through which model it was computed."""

    calls = ()

    def forward(self, features, labels=None):
        Through.calls += (type(self.model).__name__,)
        return super().forward(features, labels)


def resumed_on_ranks(folder):
    """One sequence of batches for all processes; probes use the bare model; a resume is exact."""
    settings = {"save_strategy": "steps", "save_steps": 5, "max_steps": 12, "dataloader_drop_last": True}
    made = partial(trainer_of, folder, loss=Through, dropout=0.0, settings=settings)
    whole, _ = assert_resumes(made, folder / "checkpoint-5")
    wrapped, bare = "DistributedDataParallel", "SentenceTransformer"  # two steps, then the probes of an update
    turns = [(name, len(list(calls))) for name, calls in groupby(Through.calls)][:12]
    assert turns[::2] == [(wrapped, 2)] * 6
    assert [name for name, _ in turns[1::2]] == [bare] * 6
    assert type(whole.loss.model).__name__ == wrapped
    every = [None, None]
    dist.all_gather_object(every, drawn(whole, train_sets()))
    names = [name for pair in zip(*every, strict=True) for name, _ in pair]
    assert names == simulated(24, {2 * step + 2: mixture for step, mixture in mixtures(whole).items()})


def trained(folder):
    """A training that ends with its first update: one process with accumulation reads less far ahead than two."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    settings = {"max_steps": 3, "optim": "sgd", "max_grad_norm": 0.0, "dataloader_drop_last": True}
    settings |= {"gradient_accumulation_steps": 2 // processes}
    parts = dict.fromkeys("abc", losses.MultipleNegativesRankingLoss)
    options = {"probes": Probes(batches=4, count="in all"), "rule": RelevancePlan()}
    trainer, callback = trainer_of(folder, every=3, dropout=0.0, loss=parts, settings=settings, **options)
    trainer.train()
    weights = {name: p.tolist() for name, p in trainer.model.named_parameters()}
    return mixtures(trainer)[3], weights, callback.balancer.history[0].noise


@pytest.mark.claim(
    "sentence-transformers", "**two processes**: one sequence, equal to one process with accumulation, exact resume"
)
@pytest.mark.slow
def test_two_processes_share_one_sequence_of_batches(tmp_path):
    checks = [partial(resumed_on_ranks, tmp_path / "resumed")]
    assert_ranks_equal_one_process(trained, tmp_path, arguments=[tmp_path], tolerance=1e-5, checks=checks, fork=True)
