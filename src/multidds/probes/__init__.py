"""Gradients of datasets and dev sets, taken without leaving a trace.

`Probes` are the settings that `Balancer` and `ExampleScorer` share:

>>> from multidds.probes import Probes
>>> Probes(batches=2, count="in all").in_all(processes=4)
2
>>> Probes(batches=2).in_all(processes=4)
8
"""

from .settings import Probes

__all__ = ["Probes"]
