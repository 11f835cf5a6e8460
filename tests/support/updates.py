"""Updates without a training."""

from multidds import Update


def updates(names="abc", count=5, moving=0.05, **fields):
    """Returns updates at steps 10, 20, ...: the first dataset gains as much as the last one loses."""
    even = dict.fromkeys(names, 1 / len(names))
    return [
        Update(
            step=10 * (i + 1),
            mixture=even | {names[0]: even[names[0]] + moving * i} | {names[-1]: even[names[-1]] - moving * i},
            **{
                "rewards": {name: 0.1 * place for place, name in enumerate(names)},
                "noise": dict.fromkeys(names, 0.02),
                "dev_losses": {"x": 2.0 - 0.1 * i},
                "train_losses": {},
                "weights": {},
                "alignment": None,
                "seconds": 0.1,
                **fields,
            },
        )
        for i in range(count)
    ]
