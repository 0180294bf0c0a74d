"""The commands of `rop`, a file for each; here are their names and the exit codes they return.

The file of a command has a function ``add``, which gives the command its parser. runs.py and common.py hold what
several of them share.
"""

COMMANDS = ("demo", "train", "resume", "eval", "spectrum", "check", "bench")  # as `rop --help` lists them

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
