"""Ctrl-C at any moment: exit code 130 and no traceback.

Before the interpreter has got to the package nothing of the package can help: then Python ends as Python does, by the
signal itself or with a traceback of its own start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rop import cli
from rop.commands import INTERRUPTED
from tests.helpers.processes import ROOT, environment, run_python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

PACKAGE = str(ROOT / "rop")
SCRIPT = Path(sys.executable).with_name("rop")
COMMANDS = {"python -m rop": [sys.executable, "-m", "rop"], "rop": [str(SCRIPT)]}
MOMENTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2)
QUICK = {("python -m rop", 0.05), ("rop", 0.1), ("python -m rop", 0.2), ("rop", 0.3), ("python -m rop", 0.8)}

# Interrupts the command where it asks for a module, or for a file of its own: the moments that are hard to hit by time.
HOOK = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
sys.argv = ["rop", *{arguments!r}]
{start}
"""
STARTS = {
    "rop": "from rop.cli import main; sys.exit(main())",
    "python -m rop": "runpy.run_module('rop', run_name='__main__', alter_sys=True)",
}
# in the order in which they come; the first ones before there is a handler, "rop.cli" by a script that is not ours
EARLY = ("rop.cli", "rop.commands", "rop.commands.bench", "argparse", "numpy", "rop.commands.train")
LATE = ("rop.optim", "rop.objective", "numba", "llvmlite", "rop.kernels.compile", "rop.eigen", "scipy.sparse")
IMPORTS = [
    *(("python -m rop", module) for module in EARLY),
    *(("rop", module) for module in EARLY[1:]),
    *(pytest.param("rop", module, marks=[] if module == "numba" else pytest.mark.thorough) for module in LATE),
]


@pytest.mark.parametrize("start, module", IMPORTS)
def test_an_interrupt_during_an_import(start: str, module: str) -> None:
    code = HOOK.format(module=module, arguments=["demo", "--epochs", "1"], start=STARTS[start])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == INTERRUPTED, done.stderr
    assert done.stderr in ("rop: interrupted\n", "rop demo: interrupted\n", ""), done.stderr


@pytest.mark.parametrize(
    "form, moment",
    [
        pytest.param(form, moment, marks=[] if (form, moment) in QUICK else pytest.mark.thorough)
        for form in COMMANDS
        for moment in MOMENTS
    ],
)
def test_an_interrupt_at_a_moment(form: str, moment: float) -> None:
    if form == "rop" and not SCRIPT.exists():
        pytest.skip("the command is not installed beside this interpreter")
    process = subprocess.Popen(
        [*COMMANDS[form], "train", "digits", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    if process.returncode == INTERRUPTED:
        assert "Traceback" not in err and "ignored" not in err and not out, err
    else:  # the interpreter was still on its way
        assert process.returncode in (-signal.SIGINT, 1) and PACKAGE not in err and not out, (process.returncode, err)
        assert moment < 1, err


def test_an_interrupt_that_a_callback_swallows_comes_again() -> None:
    """Python prints what is raised in a destructor and forgets it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import signal, sys
from rop import cli
from rop.commands import demo

class Deaf:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run(options):
    thing = Deaf()
    del thing
    while True:
        pass

demo.demo = run
sys.argv = ["rop", "demo"]
sys.exit(cli.main())
""",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (INTERRUPTED, "rop demo: interrupted\n")


def test_other_lost_errors_are_still_shown() -> None:
    done = run_python("""
import sys
from rop import cli

class Broken:
    def __del__(self):
        raise ValueError("lost")

sys.unraisablehook = cli._not_lost
Broken()
""")
    assert "ValueError: lost" in done.stderr


def test_an_ignored_signal_stays_ignored() -> None:
    """As in a job that a shell has put into the background."""
    done = run_python("""
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from rop import cli
from rop.commands import demo
demo.demo = lambda options: os.kill(os.getpid(), signal.SIGINT) or 0
sys.argv = ["rop", "demo"]
assert cli.main() == 0 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
""")
    assert done.stderr == ""


def test_a_caller_keeps_its_handler(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert signal.getsignal(signal.SIGINT) is before


def test_the_package_is_there_before_anything_slow() -> None:
    """Numba and NumPy are loaded when something is asked for; the names are there all the same."""
    run_python("""
import sys, rop, rop.cli
slow = [name for name in ("numpy", "numba", "scipy", "typing", "argparse", "torch") if name in sys.modules]
allowed = {name for name in slow if name in ("typing",)}  # a .pth file of the environment may have loaded it
assert set(slow) <= allowed, slow
assert set(rop.__all__) <= set(dir(rop)) and "numba" not in sys.modules
assert rop.layers.Linear is rop.Linear and rop.errors.RopError is rop.RopError and rop.graph.Graph is rop.Graph
names = {}
exec("from rop import *", names)
assert names["Linear"] is rop.Linear and names["Objective"] is rop.Objective and "torch" not in sys.modules
try:
    rop.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
""")
