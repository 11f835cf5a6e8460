"""The examples for trainers in their shortest form; `tests/nightly` checks what they find."""

import huggingface_trainer
import lightning_fit
import pytest
import sentence_transformers_fit
import trl_sft
from toy_lightning import QUIET

pytestmark = QUIET


@pytest.mark.parametrize(
    ("example", "steps"),
    [
        (huggingface_trainer, 10),
        pytest.param(trl_sft, 5, marks=pytest.mark.slow),
        (sentence_transformers_fit, 10),
        (lightning_fit, 200),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_example_runs(example, steps, capsys):
    assert example.main(steps).keys() == {"proportional", "learned"}
    assert "learned" in capsys.readouterr().out
