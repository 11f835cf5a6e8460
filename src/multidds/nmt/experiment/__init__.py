"""Many runs: blocks of settings, methods and seeds, each run an ordinary command line in a process of its own.

`experiment_file` reads the TOML file, and `run_list` makes the runs of it. `job` has the state of a run and the stages
that remain. `runner` starts their commands, on this machine (`local_process`) or on a cluster (`slurm_job`). Overrides
are those of the command line:

>>> from multidds.nmt.experiment.run_list import flat, toml_literal
>>> flat({"mixture": {"method": "static", "scorer": {"lr": 0.1}}})
{'mixture.method': 'static', 'mixture.scorer.lr': 0.1}
>>> toml_literal({"aze-eng": 0.5, "odd name": [1, True]})
'{aze-eng = 0.5, "odd name" = [1, true]}'
"""
