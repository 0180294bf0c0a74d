"""The commands of `rop`, a file for each; here are their names and the exit codes they return.

The file of a command has a function ``add``, which gives the command its parser. common.py is shared by all commands,
runs.py by those on run folders.
"""

COMMANDS = (
    "demo",
    "train",
    "resume",
    "eval",
    "spectrum",
    "reproduce",
    "check",
    "bench",
    "warm",
)  # as `rop --help` lists them

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
