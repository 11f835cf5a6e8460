"""Balancers and estimators of the small models and data of `toys`."""

from toys import batches, dataset, loss, mlp

from multidds import Balancer, Budget, Mixture, batches_of
from multidds.probes.probe_sources import ProbeSources
from multidds.probes.prober import Prober
from multidds.rewards import StabilizedCosine
from multidds.rewards.estimator import Estimator
from multidds.rewards.gradient_probes import GradientProbes
from multidds.rewards.mixed_batches import MixedBatches
from multidds.rules import Scorer

NAMES = ("a", "b", "c")
DEV = ("x", "y", "z")
SIZES = {"a": 10, "b": 30, "c": 60}
MANY = tuple(f"d{i:02}" for i in range(40))
MANY_DEV = tuple(f"k{i:02}" for i in range(30))


def balancer_of(model=None, train=None, dev=None, mixture=None, compute=loss, **options):
    """A balancer with the paper's rule, which updates at every step."""
    train = batches(NAMES, 4) if train is None else train
    dev = batches(DEV, 4, seed=1) if dev is None else dev
    mixture = mixture or Mixture.proportional({name: SIZES.get(name, 10) for name in train})
    options = {"every": 1, "rule": Scorer(), **options}
    return Balancer(mixture, model or mlp(), compute, train=train, dev=dev, **options)


def many_sources(names=MANY, dev_names=MANY_DEV, size=4):
    """(train, dev): sources of batches of single examples, each set with data of its own whatever the order."""
    train = {name: batches_of(dataset(30, seed=MANY.index(name)), size) for name in names}
    dev = {name: batches_of(dataset(30, seed=1000 + MANY_DEV.index(name)), size) for name in dev_names}
    return train, dev


def many(names=MANY, dev_names=MANY_DEV, model=None, **options):
    """A balancer of many sets with the default rule: 2,000 steps buy too few updates that probe all of them."""
    train, dev = many_sources(names, dev_names)
    options = {"steps": 2000, "every": Budget(0.4), **options}
    return Balancer(Mixture.uniform(names), model or mlp(), loss, train=train, dev=dev, **options)


def estimator_of(
    model=None,
    train=None,
    dev=None,
    reward=None,
    compute=loss,
    seed=0,
    part=None,
    batches_per_set=1,
    errors=False,
    mixed=None,
    per_set=None,
):
    """An estimator of rewards by gradients of datasets, or by batches that mix them.

    mixed: (batches that mix datasets, batches that mix dev sets) for `MeanSlope`; None: gradients
    per_set: `Probes` with another loss for dev sets, which are then not mixed
    """
    train = batches(NAMES, 4) if train is None else train
    dev = batches(DEV, 4, seed=1) if dev is None else dev
    prober = Prober(
        model or mlp(), compute, None, "train", seed, owner="Balancer", dev_loss=per_set and per_set.dev_loss
    )
    sources = ProbeSources("Balancer", {"train": train, "dev": dev}, seed)
    reward = reward or StabilizedCosine()
    if mixed is not None:
        measurement = MixedBatches(prober, reward.losses, sources, *mixed, per_set)
    else:
        numbers = {"batches": batches_per_set, "total": None, "errors": errors, "split_work": None}
        measurement = GradientProbes(tuple(train), tuple(dev), prober, sources, reward, **numbers)
    return Estimator(train, prober, sources, measurement, part)
