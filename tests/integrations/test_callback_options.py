"""The callbacks take every option of Balancer, and say so where people look."""

import inspect

import pytest
from options_shown import check_help, check_signature

from multidds.integrations import huggingface, lightning
from multidds.integrations.options import takes_options_of

CALLBACKS = [huggingface.BalanceCallback, lightning.BalanceCallback]
KINDS = pytest.mark.parametrize("kind", CALLBACKS, ids=lambda kind: kind.__module__.split(".")[1])


@KINDS
def test_every_option_of_the_balancer_is_in_the_signature(kind):
    check_signature(kind)


@KINDS
def test_every_argument_is_documented_where_help_shows_it(kind):
    check_help(kind)


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

    @takes_options_of(Taker, provided=["own"])
    def take(other, **options):
        """Takes.

        other: another one.
        """

    assert str(inspect.signature(take)) == "(other, *, often, low=1, high=2)"
    assert inspect.getdoc(take).endswith("low, high: limits.")
