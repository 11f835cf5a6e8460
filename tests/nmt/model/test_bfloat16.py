import os
import subprocess
import sys

import pytest
from conftest import ROOT, multidds
from toy_runs import SMALL, Silent, small_config

from multidds._base.errors import UserError
from multidds.nmt.model import bfloat16
from multidds.nmt.training.train import train

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_WITH_AMX = f"import os\nif os.environ.get({bfloat16.LIMIT[0]!r}) != {bfloat16.LIMIT[1]!r}: os.abort()"
BFLOAT16 = [*SMALL, "train.precision=bfloat16", "train.max_steps=4"]


@pytest.fixture
def new(monkeypatch, tmp_path):
    """A process that knows nothing yet, on a CPU that reports AMX."""
    monkeypatch.setattr(bfloat16, "CPU_FLAGS", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : avx512f amx_bf16 amx_tile\n")
    monkeypatch.setenv(bfloat16.ANSWER, "")
    monkeypatch.delenv(bfloat16.LIMIT[0], raising=False)


@pytest.mark.bfloat16
@pytest.mark.slow
def test_where_bfloat16_works_the_trial_ends_well(new):
    assert bfloat16.survives()
    assert bfloat16.survives(bfloat16.LIMIT)


@pytest.mark.parametrize(("trial", "found"), [("pass", "works"), (DIES_WITH_AMX, "limited"), (DIES, "never")])
def test_the_trial_is_made_once_for_all_processes(new, monkeypatch, trial, found):
    monkeypatch.setattr(bfloat16, "TRIAL", trial)
    assert bfloat16.answer() == found
    monkeypatch.setattr(bfloat16, "survives", None)
    assert bfloat16.answer() == found
    code = "from multidds.nmt.model import bfloat16; bfloat16.survives = None; print(bfloat16.answer())"
    inner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert inner.stdout.strip() == found


def test_there_is_no_trial_where_the_cpu_has_no_amx(new, monkeypatch):
    bfloat16.CPU_FLAGS.write_text("flags : avx2\n")
    monkeypatch.setattr(bfloat16, "survives", None)
    assert bfloat16.answer() == "works"
    bfloat16.CPU_FLAGS.unlink()
    assert bfloat16.may_have_amx()  # not Linux: nobody says


def test_training_from_python_says_what_to_set(new, corpus, monkeypatch, tmp_path):
    config = small_config(corpus, monkeypatch, "train.precision=bfloat16")
    monkeypatch.setenv(bfloat16.ANSWER, "limited")
    with pytest.raises(
        UserError,
        match=r'\[train\] precision = "bfloat16" ends the process on this CPU, whose AMX is not granted; '
        "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts.",
    ):
        train(config, tmp_path / "run", Silent())
    monkeypatch.setenv(bfloat16.ANSWER, "never")
    with pytest.raises(UserError, match="with and without AMX; use float32."):
        train(config, tmp_path / "run", Silent())


@pytest.mark.slow
def test_the_command_limits_onednn_by_itself_and_says_so_once(corpus):
    if bfloat16.answer() == "never":
        pytest.skip(f"bfloat16 {bfloat16.refusal()}")
    recipe = ROOT / "recipes" / "tiny.toml"
    overrides = [part for text in BFLOAT16 for part in ("--set", text)]
    multidds("prepare", recipe, cwd=corpus)
    command = ("train", recipe, "--run", "runs/bfloat16", *overrides)
    done = multidds(*command, cwd=corpus, env=os.environ | {bfloat16.ANSWER: "limited"})
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("Balancer: 4 steps have 0 updates"))
    assert line == (
        "bfloat16: this CPU reports AMX but the system does not grant it; "
        "going on with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
    )
    assert "Finished after 4 steps" in done.stdout
    refused = multidds(*command, cwd=corpus, env=os.environ | {bfloat16.ANSWER: "never"}, check=False)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        'multidds: [train] precision = "bfloat16" ends the process on this CPU, with and without AMX; use float32.'
    ]


def test_other_precisions_make_no_trial(corpus, monkeypatch, tmp_path):
    monkeypatch.setenv(bfloat16.ANSWER, "never")
    config = small_config(corpus, monkeypatch, "train.max_steps=2")
    assert train(config, tmp_path / "run", Silent()).step == 2
