"""Rules on lists of numbers in the place of names."""

from multidds.rules import Evidence, Training


def by_place(values):
    """{name: value}, with names in the order of the list."""
    return {f"d{place:03}": value for place, value in enumerate(values)}


class OnLists:
    """The state of a rule for a mixture."""

    def __init__(self, settings, prior):
        self._prior = by_place(prior)
        self.state = settings.start(Training(self._prior))

    def step(self, rewards, errors=()):
        moved = self.state.step(Evidence(by_place(rewards), by_place(errors)))
        return None if moved is None else [moved[name] for name in self._prior]

    def state_dict(self):
        return self.state.state_dict()

    def load_state_dict(self, state):
        self.state.load_state_dict(state)
