"""Balancers and estimators of the small models and data of `toys`."""

from toys import batches, loss, mlp

from multidds import Balancer, Mixture
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


def balancer_of(model=None, train=None, dev=None, mixture=None, compute=loss, **options):
    """A balancer with the paper's rule, which updates at every step."""
    train = batches(NAMES, 4) if train is None else train
    dev = batches(DEV, 4, seed=1) if dev is None else dev
    mixture = mixture or Mixture.proportional({name: SIZES.get(name, 10) for name in train})
    options = {"every": 1, "rule": Scorer(), **options}
    return Balancer(mixture, model or mlp(), compute, train=train, dev=dev, **options)


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
):
    """An estimator of rewards by gradients of datasets, or by batches that mix them.

    mixed: (batches that mix datasets, batches that mix dev sets) for `MeanSlope`; None: gradients
    """
    train = batches(NAMES, 4) if train is None else train
    dev = batches(DEV, 4, seed=1) if dev is None else dev
    prober = Prober(model or mlp(), compute, None, "train", seed, owner="Balancer")
    sources = ProbeSources("Balancer", {"train": train, "dev": dev}, seed)
    reward = reward or StabilizedCosine()
    if mixed is not None:
        measurement = MixedBatches(prober, reward.losses, sources, *mixed, by_set=False)
    else:
        numbers = {"batches": batches_per_set, "total": None, "errors": errors, "split_work": None}
        measurement = GradientProbes(tuple(train), tuple(dev), prober, sources, reward, **numbers)
    return Estimator(train, dev, prober, sources, measurement, part)
