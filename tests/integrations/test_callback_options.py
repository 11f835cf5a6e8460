"""The callbacks take every option of Balancer, and say so where people look."""

import inspect
import pydoc
import re

import pytest

from multidds import Balancer, huggingface, lightning
from multidds.options import takes_options_of

PROVIDED = {"mixture", "model", "loss", "train", "dev"}  # by the callbacks
CALLBACKS = [huggingface.BalanceCallback, lightning.BalanceCallback]
KINDS = pytest.mark.parametrize("kind", CALLBACKS, ids=lambda kind: kind.__module__.split(".")[1])


@KINDS
def test_every_option_of_the_balancer_is_in_the_signature(kind):
    ours, theirs = inspect.signature(kind).parameters, inspect.signature(Balancer).parameters
    for name in theirs.keys() - PROVIDED:
        assert ours[name].default == theirs[name].default, name
        assert ours[name].annotation == theirs[name].annotation
    assert not [p for p in ours.values() if p.kind is p.VAR_KEYWORD]
    assert len(theirs) - len(PROVIDED) > 10


@KINDS
def test_every_argument_is_documented_where_help_shows_it(kind):
    text = pydoc.plain(pydoc.render_doc(kind))
    documented = {name for names in re.findall(r"(?m)^ \|  (\w+(?:, \w+)*): ", text) for name in names.split(", ")}
    assert inspect.signature(kind).parameters.keys() <= documented


def test_options_are_taken_up_without_an_edit():
    class Source:
        """Does things.

        given: by the other class.
        often: how often. It is
            a long story.
        low, high: limits.
        """

        def __init__(self, given, *, often, low=1, high=2):
            pass

    @takes_options_of(Source, provided=["given"])
    class Taker:
        """Hands on.

        own: its own.
        """

        def __init__(self, own, often=None, **options):
            self.options = options

    class Heir(Taker):
        def __init__(self, only):
            super().__init__(only)

    assert str(inspect.signature(Taker)) == "(own, often, *, low=1, high=2)"
    assert str(inspect.signature(Heir)) == "(only)"
    assert inspect.getdoc(Taker).endswith(
        "own: its own.\n\nOptions of `Source`:\n\noften: how often. It is\n    a long story.\nlow, high: limits."
    )
    assert Taker(1, low=3).options == {"low": 3}
