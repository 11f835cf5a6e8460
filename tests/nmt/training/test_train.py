import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import ROOT, multidds
from made_runs import read_checksummed_json, read_lines, updates_of
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from toy_runs import SMALL, Silent, Stopping, mistake, records, same_runs, small_config, tensors

from multidds._base.errors import UserError
from multidds.history import evaluations_of
from multidds.nmt.batches.sentences import Sentences
from multidds.nmt.common.checksummed import write_checksummed
from multidds.nmt.config.config import read_run
from multidds.nmt.model.device import compiler_errors
from multidds.nmt.prepare import Prepared
from multidds.nmt.runs import checkpoints
from multidds.nmt.training.balancing import planned_pace
from multidds.nmt.training.progress import CLOCKS
from multidds.nmt.training.schedule import planned_sentences
from multidds.nmt.training.start_mixture import prior_of
from multidds.nmt.training.train import Training, train


def data_of(config):
    prepared = Prepared(config)
    return {name: Sentences(prepared, name, "train") for name in config.data.names}


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for the device, were the tensors on one."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim")

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        assert function.overloadpacket.__name__ not in self.WAITS, f"{function} waits for the device"
        return function(*arguments, **(options or {}))


def test_the_clocks_share_all_time_of_the_loop(corpus, monkeypatch, tmp_path):
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    at = train(small_config(corpus, monkeypatch), tmp_path / "run", Silent())
    assert set(at.seconds) == set(CLOCKS)
    assert all(at.seconds.values())
    assert at.seconds["steps"] == 2 * 12  # the step, and waiting for its loss
    began = next(ticks)
    again = train(small_config(corpus, monkeypatch, "train.max_steps=13"), tmp_path / "run", Silent())
    assert again.seconds["steps"] == 2 * 13
    assert 0 < sum(again.seconds.values()) - sum(at.seconds.values()) < next(ticks) - began


def test_a_missing_compiler_is_one_line():
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    expected = r"\[train\] compile = true: InvalidCxxCompiler: .*C\+\+ compiler.* Triton on a GPU\."
    failed = BackendCompilerFailed("inductor", InvalidCxxCompiler(), None)
    for error in (InductorError(InvalidCxxCompiler(), None), failed):
        with pytest.raises(UserError, match=expected), compiler_errors():
            raise error
    with pytest.raises(RuntimeError, match="something else"), compiler_errors():
        raise RuntimeError("something else")


def test_a_step_never_waits_for_the_device(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "mixture.every=100", "train.label_smoothing=0.1")
    run = Training(config, tmp_path / "run")
    for _ in range(3):
        batches, _, tokens = run.stream.next(run.steps_until_update())
        with NoWaiting():
            run.step(batches, tokens)
    with pytest.raises(AssertionError, match="waits"), NoWaiting():  # the net has no hole
        torch.ones(1).item()
    run.close()


@pytest.mark.parametrize(
    "method", ["static", "learned", "watch", "shuffled", "multidds", "multidds-s", "moving-average"]
)
@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_every_method_trains_and_records_what_it_did(corpus, monkeypatch, tmp_path, method, mixing):
    config = small_config(corpus, monkeypatch, f"mixture.method={method}", f"train.mixing={mixing}", "train.tokens=200")
    show = Silent()
    at = train(config, tmp_path / "run", show)
    assert (at.step, at.finished) == (12, "12 steps")
    found = records(tmp_path / "run")
    kinds = [(record["kind"], record["step"]) for record in found]
    ends = [("start", 0), ("validation", 12)]
    assert sorted(kinds) == sorted([("step", s) for s in (3, 6, 9, 12)] + ends)
    start, *_ = read_lines(tmp_path / "run", "mixture.jsonl")
    assert start["mixture"] == prior_of(config, data_of(config)).probabilities
    updates = updates_of(tmp_path / "run")
    assert [update["step"] for update in updates] == ([5, 10] if method != "static" else [])
    pairs = set(config.data.names)
    for update in updates:
        assert set(update["mixture"]) == set(update["reward"]) == set(update["passes"]) == pairs
        assert ("noise" in update) == ("signal" in update) == (method in ("learned", "watch", "shuffled"))
        found_for = {dev: set(row) for dev, row in update.get("relevance", {}).items()}
        assert found_for == ({} if method == "moving-average" else dict.fromkeys(pairs, pairs))
    validation = next(record for record in found if record["kind"] == "validation")
    assert evaluations_of(tmp_path / "run") == {name: [(12, loss)] for name, loss in validation["dev_loss"].items()}
    assert validation["finished"] == "12 steps"
    mean = sum(validation["dev_loss"].values()) / 2
    assert validation["mean"] == pytest.approx(mean)
    assert validation["perplexity"]["mirror-base"] == pytest.approx(math.exp(validation["dev_loss"]["mirror-base"]))
    assert (tmp_path / "run" / "best.safetensors").exists()
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(
    "method", ["static", "learned", "multidds-s", "moving-average", "static mixture.schedule=proportional-to-uniform"]
)
@pytest.mark.parametrize("mixing", ["example", "batch"])
def test_a_run_that_was_cut_off_ends_as_one_that_was_not(corpus, monkeypatch, tmp_path, method, mixing):
    """Cut off behind a checkpoint, with steps and records after it that are lost."""
    config = small_config(
        corpus, monkeypatch, *f"mixture.method={method}".split(), f"train.mixing={mixing}", "train.tokens=200",
        "mixture.scorer.optimizer=adam", "mixture.priority=low",
    )  # fmt: skip
    train(config, tmp_path / "whole", Silent())
    for stop in (6, 11):
        run = Training(config, tmp_path / "cut")
        at = run.progress
        while at.step < stop:
            batches, sentences, tokens = run.stream.next(run.steps_until_update())
            run.step(batches, tokens)
            at.step, at.sentences, at.tokens = at.step + 1, at.sentences + sentences, at.tokens + tokens
            run.watch(Silent())
            if run.schedule is not None:
                run.schedule.step()
            if run.balancer is not None and (update := run.balancer.step()):
                run.record_update(update, Silent())
            if at.step % 4 == 0:
                run.save()
        run.records.flushed()
        run.close()  # two or three steps are not in the checkpoint
    train(config, tmp_path / "cut", Silent())
    same_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_schedule_moves_the_mixture_of_a_training(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "mixture.method=static", "mixture.schedule=proportional-to-uniform")
    train(config, tmp_path / "run", Silent())
    (last,) = (record for record in records(tmp_path / "run") if record["kind"] == "validation")
    assert last["mixture"] == pytest.approx({"mirror-base": 0.5, "shift-base": 0.5})


def test_the_control_rewards_every_pair_for_another_one(corpus, monkeypatch, tmp_path):
    found = {}
    for method in ("learned", "shuffled"):
        config = small_config(corpus, monkeypatch, f"mixture.method={method}", "train.max_steps=5")
        train(config, tmp_path / method, Silent())
        (found[method],) = (update["reward"] for update in updates_of(tmp_path / method))
    assert found["learned"].keys() == found["shuffled"].keys()
    assert found["learned"]["mirror-base"] != pytest.approx(found["shuffled"]["mirror-base"], abs=1e-3)


def test_watching_trains_as_without_updates_and_says_what_learning_would_do(corpus, monkeypatch, tmp_path):
    weights = {}
    for method in ("static", "watch"):
        config = small_config(corpus, monkeypatch, f"mixture.method={method}", "mixture.prior=uniform")
        train(config, tmp_path / method, Silent())
        weights[method] = load_file(tmp_path / method / "best.safetensors")
    assert all(value.equal(weights["watch"][name]) for name, value in weights["static"].items())
    for update in updates_of(tmp_path / "watch"):
        assert set(update["mixture"].values()) == {0.5}
        assert update["proposed"].keys() == update["mixture"].keys()
        assert update["relevance"]


def test_epochs_switch_priorities_and_patience(corpus, monkeypatch, tmp_path):
    config = small_config(
        corpus, monkeypatch, "train.max_steps=0", "train.max_epochs=4", "train.tokens=3000", "train.batch_tokens=3000",
        "mixture.every=3", "mixture.priority=high", "mixture.switch_epoch=2", "train.lr=1e-9", "train.warmup=0",
        "train.patience=3",
    )  # fmt: skip
    at = train(config, tmp_path / "run", Silent())
    assert at.finished in ("4 epochs", "no better dev loss in 3 validations")
    found = records(tmp_path / "run")
    validations = [record for record in found if record["kind"] == "validation"]
    assert [record["epoch"] for record in validations] == list(range(1, len(validations) + 1))
    switched = validations[1]["step"]
    for update in updates_of(tmp_path / "run"):
        regular = len(set(update["dev_weight"].values())) == 1
        assert regular == (update["step"] <= switched)


def test_steps_switch_priorities_within_an_epoch(corpus, monkeypatch, tmp_path):
    overrides = ("train.max_steps=12", "mixture.every=3", "mixture.priority=high", "mixture.switch_step=6")
    train(small_config(corpus, monkeypatch, *overrides), tmp_path / "run", Silent())
    updates = updates_of(tmp_path / "run")
    assert {update["step"]: len(set(update["dev_weight"].values())) > 1 for update in updates} == {
        3: False,
        6: True,
        9: True,
        12: True,
    }


def test_a_finished_run_says_so_and_may_grow(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.max_steps=5")
    train(config, tmp_path / "run", Silent())
    before = tensors(tmp_path / "run")
    assert train(config, tmp_path / "run", Silent()).finished == "5 steps"
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors(tmp_path / "run").items())
    longer = small_config(corpus, monkeypatch, "train.max_steps=12")
    assert train(longer, tmp_path / "run", Silent()).step == 12
    assert read_run(tmp_path / "run")[0].train.max_steps == 12
    train(longer, tmp_path / "straight", Silent())
    for name, tensor in tensors(tmp_path / "straight").items():
        assert torch.equal(tensor, tensors(tmp_path / "run")[name])


def test_a_changed_config_is_refused_with_the_changed_keys(corpus, monkeypatch, tmp_path):
    train(small_config(corpus, monkeypatch), tmp_path / "run", Silent())
    changed = small_config(corpus, monkeypatch, "train.lr=1", "mixture.every=7", "train.log_every=1")
    with pytest.raises(UserError, match=r"other settings: train\.lr, mixture\.every\. Choose another --run"):
        train(changed, tmp_path / "run", Silent())
    with pytest.raises(UserError, match=r"other settings: train\.max_steps"):
        train(small_config(corpus, monkeypatch, "train.max_steps=3"), tmp_path / "run", Silent())


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch)
    train(config, tmp_path / "straight", Silent())
    train(config, tmp_path / "whole", Stopping(after=8))
    whole = checkpoints.listed(tmp_path / "whole")[-1].read_bytes()
    flipped = bytearray(whole)
    flipped[-7] ^= 1  # in a tensor
    for i, damaged in enumerate((whole[: len(whole) // 2], b"", b"PK\x03\x04 something else entirely", flipped)):
        run = shutil.copytree(tmp_path / "whole", tmp_path / str(i))
        checkpoints.listed(run)[-1].write_bytes(damaged)
        show = Silent()
        train(config, run, show)
        first = r"step-00000008.safetensors: is damaged .*\. Going on from step-00000004.safetensors\.$"
        assert re.search(first, show.lines[0])
        assert show.lines[1] == "going on after step 4"
        same_runs(tmp_path / "straight", run)


@pytest.mark.parametrize("file", ["records.jsonl", "mixture.jsonl"])
def test_damaged_records_go_back_to_a_checkpoint_before_the_damage(corpus, monkeypatch, tmp_path, file):
    config = small_config(corpus, monkeypatch)
    train(config, tmp_path / "straight", Silent())
    train(config, tmp_path / "run", Silent())
    path = tmp_path / "run" / file
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    show = Silent()
    train(config, tmp_path / "run", show)
    expected = rf"{file}:\d+: is damaged.* Going on from step-00000008.safetensors\."
    assert re.search(expected, show.lines[0])
    same_runs(tmp_path / "straight", tmp_path / "run")


def test_where_no_checkpoint_is_whole_nothing_is_changed(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch)
    train(config, tmp_path / "run", Silent())
    for path in checkpoints.listed(tmp_path / "run"):
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="step-00000012.safetensors: is damaged .* No older checkpoint can be used"):
        train(config, tmp_path / "run", Silent())
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(corpus, monkeypatch, tmp_path):
    train(small_config(corpus, monkeypatch, "train.max_steps=8"), tmp_path / "run", Silent())
    newest = checkpoints.listed(tmp_path / "run")[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    train(small_config(corpus, monkeypatch, "train.save_every=1", "train.keep=1", "train.max_steps=8"),
          tmp_path / "run", Stopping(after=5))  # fmt: skip
    assert [path.stem for path in checkpoints.listed(tmp_path / "run")] == ["step-00000005"]


def test_checkpoints_are_kept_in_the_number_asked_for_and_hold_no_pickle(corpus, monkeypatch, tmp_path):
    train(small_config(corpus, monkeypatch, "train.keep=3", "train.save_every=1"), tmp_path / "run", Silent())
    names = [path.name for path in checkpoints.listed(tmp_path / "run")]
    assert names == [f"step-{step:08}.safetensors" for step in (10, 11, 12)]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == names


def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.save_every=2")
    run = Training(config, tmp_path / "run")
    run.close()
    original = Training.step

    def poisoned(self, batches, tokens):
        if self.progress.step == 5:
            with torch.no_grad():
                self.model.encoder_norm.g.fill_(math.nan)
        original(self, batches, tokens)

    monkeypatch.setattr(Training, "step", poisoned)
    with pytest.raises(UserError, match=r"step 6: the loss or its gradient is not finite on .*-00000004\.safetensors"):
        train(config, tmp_path / "run", Silent())
    assert checkpoints.listed(tmp_path / "run")[-1].stem == "step-00000004"


def test_a_checkpoint_that_may_be_spoilt_is_not_called_good(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.save_every=1", "train.keep=9")
    monkeypatch.setattr(
        "multidds.nmt.training.train.learning_rate", lambda *arguments: 1e30 if arguments[-1] == 4 else 1e-3
    )
    with pytest.raises(UserError) as error:
        train(config, tmp_path / "run", Silent())
    found = re.search(r"step (\d+): the loss or its gradient is not finite .*step-(\d+)\.safetensors", str(error.value))
    assert (int(found[1]), int(found[2])) == (5, 3)


@pytest.mark.bfloat16
def test_bfloat16_and_accumulation_train(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.precision=bfloat16", "train.tokens=600", "train.max_steps=6")
    assert train(config, tmp_path / "run", Silent()).step == 6


def test_accumulating_gradients_is_the_same_as_one_large_batch(corpus, monkeypatch, tmp_path):
    """Two halves of a step give the gradient of the whole: the mean over all tokens, not the mean of means."""
    settings = ("model.dropout=0", "mixture.method=static", "train.clip=0")
    config = small_config(corpus, monkeypatch, *settings)
    gradients = []
    for parts in (1, 3):
        run = Training(config, tmp_path / str(parts))
        from multidds.nmt.batches.batch import assemble

        items = [(run.data["shift-base"], i) for i in range(30)]
        batches = [assemble(items[k::parts]) for k in range(parts)]
        monkeypatch.setattr(run.optimizer, "step", lambda: None)
        monkeypatch.setattr(run.optimizer, "zero_grad", lambda: None)
        run.step(batches, sum(batch.tokens for batch in batches))
        gradients.append(torch.cat([p.grad.reshape(-1) for p in run.model.parameters()]))
        run.close()
    assert torch.allclose(*gradients, atol=1e-5)


def test_the_priors_are_those_of_the_core(corpus, monkeypatch, tmp_path):
    for prior, expected in (
        ("proportional", [1 / 7, 6 / 7]),
        ("uniform", [0.5, 0.5]),
        ("temperature", [1 / (1 + 6 ** (1 / 5)), 6 ** (1 / 5) / (1 + 6 ** (1 / 5))]),
    ):
        config = small_config(corpus, monkeypatch, f"mixture.prior={prior}")
        assert list(prior_of(config, data_of(config)).probabilities.values()) == pytest.approx(expected)
    explicit = small_config(
        corpus, monkeypatch, "mixture.prior=explicit", "mixture.probabilities={mirror-base=3, shift-base=1}"
    )
    assert prior_of(explicit, data_of(explicit))["mirror-base"] == 0.75
    run = Training(
        small_config(corpus, monkeypatch, "mixture.prior=unimax", "mixture.max_passes=0.5"), tmp_path / "run"
    )
    run.close()
    planned = planned_sentences(run.config, run.data)
    assert run.mixture["mirror-base"] * planned <= 0.5 * 500 * 1.001


def test_an_impossible_device_is_one_line(corpus, monkeypatch, tmp_path):
    for device in ("cuda:7", "tpu", "meta:x"):
        with pytest.raises(UserError, match=rf"\[train\] device = '{device}' cannot be used here"):
            train(small_config(corpus, monkeypatch, f"train.device={device}"), tmp_path / "run", Silent())


def test_a_folder_of_something_else_is_not_made_a_run(corpus, monkeypatch, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and is not a run; choose another --run"):
        train(small_config(corpus, monkeypatch), tmp_path, Silent())


def test_other_data_under_the_same_run_is_refused(corpus, monkeypatch, tmp_path):
    train(small_config(corpus, monkeypatch), tmp_path / "run", Silent())
    path = tmp_path / "run" / "config.json"
    facts = read_checksummed_json(path)
    write_checksummed(path, {**facts, "data": "0" * 64})
    with pytest.raises(UserError, match="was started on other data than is in"):
        train(small_config(corpus, monkeypatch), tmp_path / "run", Silent())
    path.write_text("{}")
    with pytest.raises(UserError, match="config.json: is damaged or of another version"):
        read_run(tmp_path / "run")


# ---------------------------------------------------------------------------------------------- real processes


def command(folder, *overrides):
    sets = [part for override in (*SMALL, *overrides) for part in ("--set", override)]
    return [sys.executable, "-m", "multidds", "train", str(ROOT / "recipes" / "tiny.toml"), "--run", str(folder), *sets]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(text, tmp_path, number):
    long = command(tmp_path / "run", "train.max_steps=100000", "train.max_epochs=100000")
    process = subprocess.Popen(long, cwd=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if line.startswith("step 9"):
            break
    process.send_signal(number)
    out = process.communicate(timeout=300)[0]
    assert process.returncode == 0, out
    step = int(re.search(r"Stopped and saved after step (\d+)", out)[1])
    assert "To go on: multidds train" in out
    assert checkpoints.listed(tmp_path / "run")[-1].stem == f"step-{step:08}"


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(text, tmp_path):
    settings = ("train.max_steps=150", "train.save_every=3", "mixture.every=10")
    multidds(*command(tmp_path / "whole", *settings)[3:], cwd=text)
    rng = random.Random(7)
    kills = 0
    while kills < 3:
        process = subprocess.Popen(
            command(tmp_path / "killed", *settings),
            cwd=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        first = process.stdout.readline()  # "going on after step ..." or the first step
        time.sleep(rng.uniform(0, 0.25))
        if process.poll() is not None:
            assert process.returncode == 0, first + process.stdout.read()
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    assert kills > 0
    multidds(*command(tmp_path / "killed", *settings)[3:], cwd=text)
    same_runs(tmp_path / "whole", tmp_path / "killed")


def test_a_run_has_one_writer(corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch)
    first = Training(config, tmp_path / "run")
    assert mistake(*command(tmp_path / "run")[3:]).endswith("run: is being trained by another process.")
    first.close()
    assert train(config, tmp_path / "run", Silent()).finished


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("mixture.prior=planned",), r"^plan: .* passes\), .* · 2 updates, "),
        (("mixture.prior=proportional",), r"^mixture: .* · 2 updates, "),
        (("mixture.method=static",), None),
    ],
)
def test_a_training_begins_with_the_start_line(text, tmp_path, monkeypatch, overrides, words, caplog):
    config = small_config(
        text, monkeypatch, "train.max_steps=4", "mixture.every=2", "mixture.method=learned", *overrides
    )
    train(config, tmp_path / "run", show := Silent())
    lines = [line for line in show.lines if "updates, about" in line]
    if words is None:
        assert lines == []
    else:
        assert lines == show.lines[:1]
        assert re.search(words, lines[0])
        share = int(re.search(r"about (\d+)% of the time", lines[0])[1]) / 100
        assert share == pytest.approx(planned_pace(config, 4).share, abs=0.02)  # which is of tokens
        assert lines[0].endswith(f"multidds report {tmp_path / 'run'} shows the updates")
    assert "updates, about" not in caplog.text  # one line, not two
    again = Silent()
    train(config, tmp_path / "run", again)  # it is finished
    assert again.lines == []
