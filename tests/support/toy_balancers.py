"""Balancers and probes of the small models and data of `toys`."""

from toys import batches, dataset, loss, mlp

from multidds import Balancer, Budget, Mixture, Probes, batches_of
from multidds.probes.probe import Probe
from multidds.probes.probed_model import ProbedModel
from multidds.probes.round import Round
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


def probe_of(model=None, train=None, dev=None, compute=loss, seed=0, priority="regular", **settings):
    """A probe of the sets of `balancer_of`. settings: of `Probes`."""
    train = batches(NAMES, 4) if train is None else train
    dev = batches(DEV, 4, seed=1) if dev is None else dev
    probes = Probes(**settings)
    model = model or mlp()
    probed = ProbedModel(
        model, compute, probes.params, probes.mode, seed, "Balancer", probes.dev_loss, probes.average or 0
    )
    return Probe("Balancer", probed, {"train": train, "dev": dev}, probes, priority)


def asked(probe, question):
    """What a function (probe, round), such as a reward, returns in the next round, which probes all sets."""
    with probe.open():
        weights = probe.dev_weights()
        return question(probe, Round(probe.rounds, 0, probe.names("train"), weights, weights))


def table_of(model=None, train=None, dev=None, compute=loss, parts=1, **settings):
    """The table of the next round of `probe_of`. parts: the most into which batches are divided."""
    probe = probe_of(model, train, dev, compute, **settings)
    probe.divide(parts)
    return asked(probe, Probe.table)
