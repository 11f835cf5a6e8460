"""Many runs: blocks of settings x methods x seeds, each an ordinary command line in a process of its own.

file.py is the experiment file, plan.py the runs that it stands for, progress.py what they have reached, runner.py their
processes, display.py how all that looks.
"""
