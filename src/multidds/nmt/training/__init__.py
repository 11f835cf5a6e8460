"""The training loop and its decisions at every step.

`train` is the loop and `Training` its parts; `start_mixture` and `start_weights` are where it starts, `balancing` makes
the balancer, `schedule` has the learning rate, `validation` measures models, `checkpoint_state` saves all.

>>> from multidds.nmt.training.schedule import learning_rate
>>> [round(learning_rate(peak=1.0, warmup=4, start=0.0, step=step), 3) for step in (1, 4, 16)]
[0.25, 1.0, 0.5]
"""
