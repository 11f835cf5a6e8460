"""The transformer and its arithmetic.

`transformer` is the paper's model on packed sentences, `kernels` its operations where plain PyTorch is slow on a CPU,
`averaged_weights` an average of its parameters, `device` and `bfloat16` the place where it runs.

>>> import torch
>>> from multidds.nmt.model.averaged_weights import AveragedWeights
>>> model = torch.nn.Linear(1, 1)
>>> averaged = AveragedWeights(model, steps=2)
>>> averaged.update(step=1)
>>> with averaged.swapped():
...     output = model(torch.ones(1, 1))  # by the average

Nothing is imported here: `bfloat16` has to run before torch is imported.
"""
