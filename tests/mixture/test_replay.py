import pytest
from assertions import assert_resumes_exactly

from multidds import Mixture
from multidds.mixture import Replay


def test_the_mixture_moves_at_the_recorded_steps():
    mixture = Mixture.uniform("ab")
    replay = Replay(mixture, [(0, {"a": 0.4, "b": 0.6}), (2, {"a": 0.3, "b": 0.7}), (3, {"a": 0.1, "b": 0.9})])
    assert mixture["a"] == 0.4
    assert [replay.step() for _ in range(4)] == [None, {"a": 0.3, "b": 0.7}, {"a": 0.1, "b": 0.9}, None]
    assert mixture["a"] == 0.1


def test_a_replay_resumes_exactly():
    def make():
        replay = Replay(Mixture.uniform("ab"), [(step, {"a": step / 10, "b": 1 - step / 10}) for step in range(1, 10)])
        return {"replay": replay}, lambda _: replay.step()

    assert_resumes_exactly(make, 9, as_json=True)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([(2, {"a": 1.0, "b": 0.0}), (2, {"a": 1.0, "b": 0.0})], "steps.* 2 comes after 2"),
        ([(-1, {"a": 1.0, "b": 0.0})], "steps.* -1"),
        ([(1, {"a": 1.0})], "step 1: 'b' is missing"),
        ([(1, {"a": 1.0, "b": -0.5})], "'b' is -0.5"),
    ],
)
def test_a_bad_history_is_refused(history, message):
    with pytest.raises(ValueError, match=message):
        Replay(Mixture.uniform("ab"), history)
