"""What a validation measures, against a naive version that takes one sentence at a time, and which "
"model it keeps."""

import math

import numpy as np
import pytest
import torch
from made_runs import read_lines
from toy_runs import Silent, small_config

from multidds._base.errors import UserError
from multidds.nmt.batches.batch import assemble
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.model.transformer import make_model
from multidds.nmt.prepare import Prepared
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.train import train
from multidds.nmt.training.validation import Measured, is_better, measure, ngram_counts, ngram_sums, soft_bleu

CPU = torch.device("cpu")


def validations(run):
    return [record for record in read_lines(run) if record["kind"] == "validation"]


def model_and_dev(config):
    prepared = Prepared(config)
    torch.manual_seed(5)
    model = make_model(config, prepared.vocabulary).eval()
    with torch.no_grad():  # probabilities worth multiplying
        model.target_embedding.weight *= 3
    return model, {name: Sentences(prepared, name, "dev") for name in config.data.names}


def naive(model, sentences):
    """One sentence at a time, all logits, loops."""
    losses, hits, products = [], [], {n: [] for n in (1, 2, 3, 4)}
    for i in range(len(sentences)):
        batch = assemble([(sentences, i)])
        p = model.logits(batch).double().softmax(-1)
        target = batch.target_out.tolist()
        right = [p[j, token].item() for j, token in enumerate(target)]
        losses += [-math.log(x) for x in right]
        hits += [p[j].argmax().item() == token for j, token in enumerate(target)]
        for n, found in products.items():
            found += [math.prod(right[j : j + n]) for j in range(len(right) - n + 1)]
    means = [sum(found) / len(found) for found in products.values()]
    return sum(losses) / len(losses), sum(hits) / len(hits), means[0], math.prod(means) ** (1 / 4)


# ---------------------------------------------------------------------------------------------- the measures


@pytest.mark.parametrize("chunk", [3, 2**22])
def test_one_pass_measures_what_a_sentence_at_a_time_does(corpus, monkeypatch, chunk):
    monkeypatch.setattr("multidds.nmt.model.kernels._LOGITS", chunk)
    model, dev = model_and_dev(small_config(corpus, monkeypatch))
    found = measure(model, dev, 400, CPU)
    for name, sentences in dev.items():
        with torch.no_grad():
            loss, accuracy, expected, soft = naive(model, sentences)
        assert found.dev_loss[name] == pytest.approx(loss, rel=1e-5)
        assert found.accuracy[name] == pytest.approx(accuracy)
        assert found.expected_accuracy[name] == pytest.approx(expected, rel=1e-5)
        assert found.soft_bleu[name] == pytest.approx(soft, rel=1e-5)
    assert found.means(dict.fromkeys(found.soft_bleu, 1.0))["soft_bleu"] == pytest.approx(
        sum(found.soft_bleu.values()) / 2
    )


def test_soft_bleu_by_hand():
    """Two sentences of 4 and 2 tokens: 6, 4, 2 and 1 n-grams, none of them across the two."""
    p = torch.tensor([0.5, 0.4, 1.0, 0.25, 0.8, 0.1], dtype=torch.float64)
    sums = [x.item() for x in ngram_sums(p.log(), torch.tensor([0, 1, 2, 3, 0, 1]))]
    assert sums == pytest.approx([3.05, 0.2 + 0.4 + 0.25 + 0.08, 0.2 + 0.1, 0.05])
    counts = ngram_counts(np.array([4, 2], dtype=np.int32))
    assert counts == [6, 4, 2, 1]
    assert soft_bleu(sums, counts) == pytest.approx((3.05 / 6 * 0.93 / 4 * 0.3 / 2 * 0.05) ** 0.25)


def test_soft_bleu_of_short_sentences_and_of_nothing_right():
    assert ngram_counts(np.array([1, 2, 2], dtype=np.int32)) == [5, 2, 0, 0]
    assert soft_bleu([2.5, 0.5, 0.0, 0.0], [5, 2, 0, 0]) == pytest.approx((0.5 * 0.25) ** 0.5)
    assert soft_bleu([1.0, 0.0, 0.0, 0.0], [5, 4, 3, 2]) == 0.0
    assert math.isnan(soft_bleu([math.nan] * 4, [5, 4, 3, 2]))
    for length in (1, 2, 3):
        positions = torch.arange(length)
        sums = [x.item() for x in ngram_sums(torch.zeros(length), positions)]
        assert sums == [max(length - n + 1, 0) for n in (1, 2, 3, 4)]


def test_validation_reads_the_logits_once_and_waits_once(corpus, monkeypatch):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        waits = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            self.waits += function.overloadpacket.__name__ == "_local_scalar_dense"
            return function(*arguments, **(options or {}))

    model, dev = model_and_dev(small_config(corpus, monkeypatch))
    monkeypatch.setattr(model, "logits", None)  # all of them are never there
    with Counted() as counted:
        measure(model, dev, 400, CPU)
    assert counted.waits == 0  # there is one copy, of the sums of all batches


# ---------------------------------------------------------------------------------------------- the best model


def test_better_means_lower_for_losses_and_higher_for_the_others():
    assert is_better("loss", 1.0, None)
    assert is_better("loss", 1.0, 2.0)
    assert not is_better("loss", 2.0, 2.0)
    for select in ("accuracy", "soft-bleu"):
        assert is_better(select, 0.0, None)
        assert is_better(select, 2.0, 1.0)
        assert not is_better(select, 1.0, 1.0)
        assert not is_better(select, math.nan, 1.0)
        assert not is_better(select, math.nan, None)
    assert is_better("last", 9.0, 1.0)


@pytest.mark.parametrize("select", ["loss", "accuracy", "soft-bleu", "last"])
def test_the_model_that_is_kept_is_the_best_by_the_measure_asked_for(corpus, monkeypatch, tmp_path, select):
    values = iter([(2.0, 0.5, 0.1), (1.0, 0.4, 0.2), (3.0, 0.6, 0.05)])  # the best of each stands elsewhere

    def made_up(model, dev, batch_tokens, device, processes):
        loss, accuracy, soft = next(values)
        return Measured(*(dict.fromkeys(dev, value) for value in (loss, 0.0, accuracy, soft)))

    monkeypatch.setattr("multidds.nmt.training.train.measure", made_up)
    config = small_config(
        corpus, monkeypatch, "mixture.method=static", f"train.select={select}", "train.validate_every=4"
    )
    at = train(config, tmp_path / "run", Silent())
    best, value = {"loss": (8, 1.0), "accuracy": (12, 0.6), "soft-bleu": (8, 0.2), "last": (12, 3.0)}[select]
    assert (at.best_step, at.best) == (best, value)
    found = validations(tmp_path / "run")
    assert [record["step"] for record in found] == [4, 8, 12]
    assert [record["step"] for record in found if record["best"]][-1] == best
    assert checkpoints.read(tmp_path / "run" / "best.safetensors")[1] == {
        "step": best, "select": select, "value": value
    }  # fmt: skip


@pytest.mark.parametrize("method", ["static", "learned"])
@pytest.mark.parametrize(
    ("priority", "best", "value"),
    [
        ("regular", 4, 2.0),  # the plain mean
        ("low", 4, 2.0),  # and of a priority that follows the losses
        ('{"shift-base" = 5}', 8, 1.0),  # a pair that is left out counts 0, whatever its loss
        ('{"shift-base" = 3, "mirror-base" = 1}', 8, 1.75),
    ],
)
def test_the_best_model_is_the_best_by_the_priority(corpus, monkeypatch, tmp_path, method, priority, best, value):
    values = iter([(3.0, 1.0), (1.0, 4.0), (2.0, math.nan if "5" in priority else 3.0)])

    def made_up(model, dev, batch_tokens, device, processes):
        losses = dict(zip(("shift-base", "mirror-base"), next(values), strict=True))
        return Measured(losses, losses, losses, losses)

    monkeypatch.setattr("multidds.nmt.training.train.measure", made_up)
    config = small_config(
        corpus, monkeypatch, f"mixture.method={method}", f"mixture.priority={priority}", "train.validate_every=4"
    )
    show = Silent()
    at = train(config, tmp_path / "run", show)
    assert (at.best_step, at.best) == (best, value)
    record = next(record for record in validations(tmp_path / "run") if record["step"] == best)
    assert (record["best"], record["mean"], record["means"]["soft_bleu"]) == (True, value, value)
    assert checkpoints.read(tmp_path / "run" / "best.safetensors")[1]["value"] == value
    assert any(f"step {best}  dev loss {value:.4f}  (best)" in line for line in show.lines)


def test_a_validation_records_all_measures_per_pair_and_their_means(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.validate_every=5", "mixture.method=static")
    show = Silent()
    train(config, tmp_path / "run", show)
    found = validations(tmp_path / "run")
    assert [record["step"] for record in found] == [5, 10, 12]  # and at the end
    kinds = ("dev_loss", "accuracy", "expected_accuracy", "soft_bleu")
    for record in found:
        for kind in kinds:
            assert set(record[kind]) == set(config.data.names)
            assert record["means"][kind] == pytest.approx(sum(record[kind].values()) / 2)
        assert record["mean"] == record["means"]["dev_loss"]
        assert 0 < record["soft_bleu"]["shift-base"] < record["expected_accuracy"]["shift-base"] < 1
    assert [line for line in show.lines if "dev loss" in line][-1].endswith("(best)")


def test_patience_follows_the_measure_and_needs_one(corpus, monkeypatch, tmp_path):
    config = small_config(
        corpus, monkeypatch, "train.validate_every=1", "train.patience=2", "train.select=accuracy", "train.lr=1e-9",
        "mixture.method=static",
    )  # fmt: skip
    values = iter([0.3, 0.2, 0.4, 0.4, 0.1])
    made_up = lambda _, dev, *__: Measured(  # noqa: E731
        *(dict.fromkeys(dev, value) for value in (1.0, 0.0, next(values), 0.0))
    )
    monkeypatch.setattr("multidds.nmt.training.train.measure", made_up)
    at = train(config, tmp_path / "run", Silent())
    assert (at.step, at.best_step, at.finished) == (5, 3, "no better expected accuracy in 2 validations")
    with pytest.raises(UserError, match=r"\[train\] patience = 2 waits for a better model, but select = 'last'"):
        small_config(corpus, monkeypatch, "train.patience=2", "train.select=last")
    with pytest.raises(UserError, match=r"\[train\] select: input should be 'loss', 'accuracy'.* but it is 'bleu'"):
        small_config(corpus, monkeypatch, "train.select=bleu")
    for gone in ("train.select=translation", "train.select_sentences=100"):
        with pytest.raises(UserError, match=r"\[train\] select.* was removed.* Use .*'accuracy'"):
            small_config(corpus, monkeypatch, gone)
