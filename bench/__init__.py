"""The benchmark behind `rop bench`: every engine computes the same numbers, is checked first, and is timed after.

    vocabulary.py     the layers of networks, as plain data
    architectures.py  known architectures in these words: ResNet-18, VGG-11, MobileNet, DenseNet-121
    problems.py       the problems: networks as plain data, with random inputs from a fixed seed
    networks.py       the same networks as nets of rop
    modules.py        a torch module of the user's as a problem
    engines/          rop, torch, torch.func and JAX: each builds its own network from the same data
    worker.py         one process per engine, told what to do by JSON lines
    processes.py      the runner's end of the workers
    settings.py       the problems, batch sizes, precisions, engines and works of a run
    comparison.py     compares answers with those of the reference
    timing.py         times engines in short bursts, in turns
    machine.py        describes the machine
    runner.py         starts the workers, compares their answers, then times them in turns
    growth.py         the same against width, depth and batch, with the slopes of the lines
    flops.py          counts the floating-point operations that the recursion needs
    pace.py           the measurement behind the constants of rop/devices/cpu/threads.py; not part of `rop bench`
    report.py         tables, goals, JSON
    plots.py          plots of times, relative costs and growth
    results/          committed runs, shown in the README

Installed as the package rop.bench (setup.py maps this folder); it needs the extra `rop[bench]` for its rivals.
"""
