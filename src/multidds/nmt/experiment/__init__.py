"""Many runs: blocks of settings, methods and seeds, each run an ordinary command line in a process of its own.

`experiment_file` reads the TOML file, `run_list` makes the runs of it, `progress` reads how far they are, `runner`
has their commands started, here (`local_process`) or on a cluster (`slurm_job`), both behind the interface in `place`,
and `display` shows all that. Overrides of a run are those of the command line:

>>> from multidds.nmt.experiment.run_list import flat, toml_literal
>>> flat({"mixture": {"method": "static", "scorer": {"lr": 0.1}}}, "e.toml")
{'mixture.method': 'static', 'mixture.scorer.lr': 0.1}
>>> toml_literal({"aze-eng": 0.5, "odd name": [1, True]})
'{aze-eng = 0.5, "odd name" = [1, true]}'
"""
