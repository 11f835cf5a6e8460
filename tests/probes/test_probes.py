"""`Probes`: refusals and numbers of batches."""

import pytest

from multidds.probes import Probes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batches": 0}, "batches.*0"),
        ({"batches": 1.5}, "batches.*1.5"),
        ({"batches": 2, "count": "each"}, "count.*'each'"),
        ({"count": "in all"}, "count='in all'.*batches"),
        ({"mode": "test"}, "mode.*'test'"),
        ({"dev_loss": 3}, "dev_loss.*int"),
        ({"split_work": "always"}, "split_work.*'always'"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Probes(**settings)


@pytest.mark.parametrize(
    ("settings", "in_all"), [({}, 12), ({"batches": 2}, 8), ({"batches": 2, "count": "in all"}, 2)]
)
def test_batches_are_counted_per_process_or_in_all(settings, in_all):
    assert Probes(**settings).in_all(processes=4, default=3) == in_all


def test_parameters_of_an_iterator_are_kept():
    probes = Probes(params=iter([1, 2]))
    assert list(probes.params) == list(probes.params) == [1, 2]
