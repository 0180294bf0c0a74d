"""The paper's experiments, reproduced: `rop reproduce`.

    spec.py          Task, Experiment, Context: what an experiment is
    experiments/     the experiments, a file for each
    methods.py       the training methods of the paper's tables, as published and corrected
    models.py        trained nets, which experiments share
    measures.py      accuracy, rho_batch, rho_full
    shift.py         the covariate shift of forest
    runner.py        tasks in several processes
    study.py         an experiment on its way: tasks that are left, records, folders
    records.py       a JSON file for each finished task
    statistics.py    over seeds: median, range, bootstrap intervals, probability that A beats B, rank correlation
    claims.py        claims of the paper and the tests that decide them
    tables.py        tables and plots as data
    render/          from these to the terminal, Markdown, LaTeX and PNG

Running and rendering meet in the records only.
"""
