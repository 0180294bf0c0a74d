"""The benchmark behind `rop bench`: every engine computes the same numbers, is checked first, and is timed after.

    problems.py    what is computed: networks as plain data, with random inputs from a fixed seed
    networks.py    the same networks as nets of rop
    modules.py     a torch module of the user's as a problem
    engines/       who computes it: one file per engine, each building its own network from the same data
    worker.py      one process per engine, told what to do by JSON lines
    processes.py   the workers as the runner sees them
    settings.py    what a run measures
    comparison.py  whether answers agree
    timing.py      bursts in turns
    machine.py     what it runs on
    runner.py      starts the workers, compares their answers, then times them in turns
    growth.py      the same against width, depth and batch, with the slopes of the lines
    flops.py       how many floating-point operations the recursion cannot do without
    report.py      tables, what was aimed at, JSON
    plots.py       the plots
    results/       committed runs, shown in the README

Installed as the package rop.bench (setup.py maps this folder); it needs the extra `rop[bench]` for its rivals.
"""
