"""Sources: the batches of a rank, parts of a round, sources that are refused, errors and resume."""

import re

import pytest
import torch
from assertions import assert_equal
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from toy_streams import Flow
from toys import Places, batch, dataset

from multidds import batches_of
from multidds.sampling.sources import open_source, part_indices, refuse_sharing


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


def opened(given, role="train", name="a", seed=0):
    return open_source("Balancer", role, name, given, seed)


def source_of(kind="function", **key):
    torch.manual_seed(0)  # of which stateful loaders make their own seeds
    return opened(KINDS[kind](dataset(13, seed=7)), **key)


def drawn(source, update=0, numbers=range(4), total=4):
    """The batches of these numbers, as a rank draws them."""
    found = []
    for j in range(total):
        if j in numbers:
            found.append((j, source.draw((update, j))))
        else:
            source.skip()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_draw_the_numbered_batches_of_one_process(kind):
    one, *ranks = (source_of(kind) for _ in range(3))
    for update in range(3):
        parts = [drawn(each, update, range(2 * r, 2 * r + 2)) for r, each in enumerate(ranks)]
        assert_equal(parts[0] + parts[1], drawn(one, update))


def test_random_batches_depend_on_seed_role_name_and_update():
    keys = [{}, {"role": "dev"}, {"name": "b"}, {"seed": 1}]
    found = [drawn(source_of(**key))[0][1][0].sum().item() for key in keys]
    found.append(drawn(source_of(), update=1)[0][1][0].sum().item())
    assert len(set(found)) == len(found)
    assert drawn(source_of())[0][1][0].sum().item() == found[0]


# --------------------------------------------------------------------------------------------------------- parts


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 5), st.integers(1, 9), st.integers(0, 99))
def test_parts_of_a_round_share_no_example_and_use_all(size, parts, batches, count, key):
    drawn = [
        [part_indices(size, key, (part, parts, place), count) for place in range(batches)] for part in range(parts)
    ]
    of_parts = [[i for batch in each for i in batch] for each in drawn]
    for part, indices in enumerate(of_parts):
        assert len(indices) == batches * count
        assert set(indices) <= set(range(size))
        for other in of_parts[:part] if parts <= size else ():
            assert not set(indices) & set(other)
        room = size // min(parts, size)  # at least so many examples of its own
        assert len(set(indices)) >= min(room, len(indices))


def test_every_example_comes_equally_often_over_rounds():
    counts = torch.zeros(10)
    for key in range(3000):
        for i in part_indices(10, key, (1, 2, 0), 3):
            counts[i] += 1
    assert counts.sum() == 9000
    assert (counts - 900).abs().max() < 5 * 900**0.5


def test_the_parts_of_batches_of_are_those_of_its_indices():
    source = opened(batches_of(range(40), 5))
    found = [source.draw((3, j), (j % 2, 2, j // 2)).tolist() for j in range(4)]
    assert len({i for each in found for i in each}) == 20  # no example twice, not even within a part
    assert found != [source.draw((4, j), (j % 2, 2, j // 2)).tolist() for j in range(4)]
    assert found[1] == source.draw((3, 1), (1, 2, 0)).tolist()


def test_a_source_says_how_many_parts_it_can_have():
    loader = DataLoader(dataset(13), batch_size=4)
    given = [batches_of(dataset(7), 4), loader, [batch(0)], Endless(), lambda generator: batch(0)]
    assert [opened(each).most_parts for each in given] == [7, 4, 1, float("inf"), float("inf")]


# ------------------------------------------------------------------------------------------------------- refusals


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
        opened(source, "dev", "x")


def test_one_stateful_object_under_two_names_is_refused():
    loader = StatefulDataLoader(dataset(), batch_size=4)
    with pytest.raises(ValueError, match="StatefulDataLoader.*twice"):
        refuse_sharing("Balancer", [loader, [batch(0)], loader])


@pytest.mark.parametrize("source", [Endless(), DataLoader(Flow("x", 5), batch_size=4)], ids=lambda s: type(s).__name__)
def test_a_source_without_a_state_is_named_at_once_and_when_the_state_is_saved(source, caplog):
    stream = opened(source, "dev", "x")
    name = "Endless" if isinstance(source, Endless) else "IterableDataset"
    assert re.search(f"dev 'x'.*{name}.*StatefulDataLoader", caplog.text)
    assert drawn(stream)
    with pytest.raises(ValueError, match=f"dev 'x'.*{name}"):
        stream.state_dict()


# ----------------------------------------------------------------------------------------------- errors and resume


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
    **{kind: lambda make=make: make(dataset(13, seed=7)) for kind, make in KINDS.items() if "loader" not in kind},
}


@pytest.mark.parametrize("before", [0, 1, 2], ids=["first draw", "in a pass", "at its end"])
@pytest.mark.parametrize("kind", RANDOM)
def test_batches_are_the_same_after_an_error_and_after_a_resume(kind, before):
    def made():
        torch.manual_seed(0)
        return opened(RANDOM[kind]())

    whole, broken, resumed = made(), made(), made()
    for source in (whole, broken):
        for update in range(before):
            drawn(source, update)
    state = broken.state_dict()
    drawn(broken, before, range(3), total=3)  # of an update that fails then
    broken.load_state_dict(state)
    expected = drawn(whole, before)
    assert_equal(drawn(broken, before), expected)
    broken.load_state_dict(state)
    assert_equal(drawn(broken, before), expected)
    resumed.load_state_dict(state)
    assert_equal(drawn(resumed, before), expected)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_loader_that_fails_at_once_goes_back_to_its_place(kind):
    whole, broken = (opened(kind(Random(at), batch_size=2)) for at in (None, 6))
    for source in (whole, broken):
        drawn(source, numbers=range(3), total=3)
    state = broken.state_dict()
    with pytest.raises(ConnectionError):
        drawn(broken, 1)
    broken.load_state_dict(state)
    assert_equal(drawn(broken, 1), drawn(whole, 1))
