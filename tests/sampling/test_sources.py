"""Sources of probe batches: the batches of a rank, batches that mix sets, sources that are refused, and resume."""

import re

import pytest
import torch
from assertions import assert_equal
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from toy_streams import Flow
from toys import Places, batch, dataset

from multidds import batches_of
from multidds.probes.probe_sources import ProbeSources


class Endless:
    def __iter__(self):
        while True:
            yield batch(0)


KINDS = {
    "function": lambda d: batches_of(d, 4),
    "loader": lambda d: DataLoader(d, batch_size=4, shuffle=True),
    "stateful loader": lambda d: StatefulDataLoader(d, batch_size=4, shuffle=True),
    "stateful iterator": lambda d: Places(),
    "list": lambda d: list(DataLoader(d, batch_size=4)),
}


def sources_of(kind="function", seed=0):
    torch.manual_seed(0)  # of which stateful loaders make their own seeds
    given = {role: {name: KINDS[kind](dataset(13, seed=7)) for name in "ab"} for role in ("train", "dev")}
    return ProbeSources("Balancer", given, seed)


def drawn(sources, role="train", name="a", update=0, numbers=range(4), total=4):
    return list(sources.batches(role, name, update, numbers, total))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_draw_the_numbered_batches_of_one_process(kind):
    one, *ranks = (sources_of(kind) for _ in range(3))
    for update in range(3):
        parts = [drawn(each, update=update, numbers=range(2 * r, 2 * r + 2)) for r, each in enumerate(ranks)]
        assert_equal(parts[0] + parts[1], drawn(one, update=update))


def test_random_batches_depend_on_seed_role_name_and_update():
    keys = [{}, {"role": "dev"}, {"name": "b"}, {"update": 1}]
    found = [drawn(sources_of(), **key)[0][1][0].sum().item() for key in keys]
    found.append(drawn(sources_of(seed=1))[0][1][0].sum().item())
    assert len(set(found)) == len(found)
    assert drawn(sources_of())[0][1][0].sum().item() == found[0]


def test_examples_come_one_of_each_set_by_name_then_the_second_ones():
    found = sources_of().examples("train", {"b": 3, "a": 1}, update=0)
    assert [name for name, _ in found] == ["a", "b", "b", "b"]
    before = torch.get_rng_state()
    again = sources_of().examples("train", {"a": 1, "b": 3}, update=0)
    assert_equal(again, found)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_what_batches_of_made_is_split_among_ranks():
    given = {"train": {"a": batches_of(dataset(), 4), "b": [batch(0)]}, "dev": {"x": lambda generator: batch(0)}}
    sources = ProbeSources("Balancer", given, 0)
    assert (sources.splittable("train"), sources.splittable("dev")) == ({"a"}, set())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "no batches"),
        (DataLoader([]), "no batches"),
        (batches_of([], 4), "no examples"),
        (iter([1]), "iterator"),
        (3, "DataLoader.*int"),
        (DataLoader(dataset(), num_workers=1, persistent_workers=True), "persistent_workers=True"),
    ],
)
def test_sources_that_cannot_be_drawn_from_are_refused_by_name(source, message):
    with pytest.raises((ValueError, TypeError), match=f"Balancer: dev 'x': .*{message}"):
        ProbeSources("Balancer", {"dev": {"x": source}}, 0)


def test_one_stateful_object_under_two_names_is_refused():
    loader = StatefulDataLoader(dataset(), batch_size=4)
    with pytest.raises(ValueError, match="StatefulDataLoader.*twice"):
        ProbeSources("Balancer", {"train": {"a": loader}, "dev": {"x": loader}}, 0)


@pytest.mark.parametrize("source", [Endless(), DataLoader(Flow("x", 5), batch_size=4)], ids=lambda s: type(s).__name__)
def test_a_source_without_a_state_is_named_at_once_and_when_the_state_is_saved(source, caplog):
    sources = ProbeSources("Balancer", {"dev": {"x": source}}, 0)
    name = "Endless" if isinstance(source, Endless) else "IterableDataset"
    assert re.search(f"dev 'x'.*{name}.*StatefulDataLoader", caplog.text)
    assert drawn(sources, "dev", "x")
    with pytest.raises(ValueError, match=f"dev 'x'.*{name}"):
        sources.state_dict()


@pytest.mark.parametrize(
    ("other", "message"), [([batch(0)], "train 'b'.*batches_of"), (batches_of(dataset(), 5), "batch_size.*train 'b'")]
)
def test_sets_that_cannot_be_mixed_are_refused_by_name(other, message):
    sources = ProbeSources("Balancer", {"train": {"a": batches_of(dataset(), 4), "b": other}}, 0)
    with pytest.raises(ValueError, match=message):
        sources.mixing("train")


class Random(torch.utils.data.Dataset):
    """Examples with a random number in them; reading the one at `broken` fails once."""

    def __init__(self, broken=None):
        self.broken = broken

    def __len__(self):
        return 13

    def __getitem__(self, i):
        if i == self.broken:
            self.broken = None
            raise ConnectionError
        return torch.tensor([i, torch.rand(()).item()])


def peeked(loader):
    next(iter(loader))
    return loader


RANDOM = {
    "loader": lambda: DataLoader(Random(), batch_size=2, shuffle=True),
    "stateful loader": lambda: StatefulDataLoader(Random(), batch_size=2, shuffle=True),
    "stateful loader, peeked at": lambda: peeked(StatefulDataLoader(Random(), batch_size=2)),
}


@pytest.mark.parametrize("before", [0, 1, 2], ids=["first draw", "in a pass", "at its end"])
@pytest.mark.parametrize("kind", RANDOM)
def test_random_examples_are_the_same_after_an_error_and_after_a_resume(kind, before):
    def made():
        torch.manual_seed(0)
        return ProbeSources("Balancer", {"train": {"a": RANDOM[kind]()}}, 0)

    whole, broken, resumed = made(), made(), made()
    for sources in (whole, broken):
        for update in range(before):
            drawn(sources, update=update)
    state = broken.state_dict()
    with pytest.raises(ZeroDivisionError), broken.put_back_on_error():
        1 / (0 * len(drawn(broken, update=before, numbers=range(3), total=3)))
    expected = drawn(whole, update=before)
    assert_equal(drawn(broken, update=before), expected)
    broken.load_state_dict(state, 0)  # once more, in the same object and in another
    assert_equal(drawn(broken, update=before), expected)
    resumed.load_state_dict(state, 0)
    assert_equal(drawn(resumed, update=before), expected)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_loader_that_fails_at_once_goes_back_to_its_place(kind):
    whole, broken = (ProbeSources("Balancer", {"train": {"a": kind(Random(at), batch_size=2)}}, 0) for at in (None, 6))
    for sources in (whole, broken):
        drawn(sources, total=3, numbers=range(3))
    with pytest.raises(ConnectionError), broken.put_back_on_error():
        drawn(broken, update=1)
    assert_equal(drawn(broken, update=1), drawn(whole, update=1))


@pytest.mark.parametrize("before", [0, 1], ids=["first draw", "in a pass"])
@pytest.mark.parametrize("kind", KINDS)
def test_sources_go_back_to_their_places_if_an_update_raises(kind, before):
    whole, broken = sources_of(kind), sources_of(kind)
    for sources in (whole, broken):
        for update in range(before):
            drawn(sources, update=update)
    with pytest.raises(ZeroDivisionError), broken.put_back_on_error():
        1 / (0 * len(drawn(broken, update=before, numbers=range(3), total=3)))
    assert_equal(drawn(broken, update=before), drawn(whole, update=before))
