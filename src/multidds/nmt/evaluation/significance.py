"""The significance of the difference between two runs: sacreBLEU's paired bootstrap on the texts that they keep.

Reads hypotheses/ and references/ of evaluated runs; needs neither CTranslate2 nor torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from multidds._base.errors import UserError

from ..config.config import read_run
from .scores import scored_lines


def compare(run: Path, other: Path, samples: int = 1000) -> dict[str, dict[str, Any]]:
    """Returns BLEU of both runs and the p-value of their difference, for every language pair that both have.

    samples: the number of bootstrap samples.
    """
    configs = [read_run(folder)[0] for folder in (run, other)]
    shared = [name for name in configs[0].data.names if name in configs[1].data.names]
    if not shared:
        raise UserError(f"{run} and {other} have no language pair in common.")
    result = {}
    for name in shared:
        references = scored_lines(run, "references", name)
        if references != scored_lines(other, "references", name):
            raise UserError(f"{name!r}: {run} and {other} have different test sets.")
        systems: list[tuple[str, Sequence[str]]] = [
            (str(i), scored_lines(folder, "hypotheses", name)) for i, folder in enumerate((other, run))
        ]
        test = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=samples)
        _, results = test()
        theirs, ours = (result for result in results["BLEU"] if isinstance(result, Result))
        result[name] = {"bleu": ours.score, "against": theirs.score, "p": ours.p_value}
    return result
