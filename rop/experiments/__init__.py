"""The paper's experiments.

    data/         the data sets, a file for each
    dataset.py    the parts of a data set, and how they are split
    files.py      reading and checking the publishers' files, downloads
    nets.py       the nets
    settings.py   optimizers and penalties
    runs.py       run folders: `rop train` and the commands that follow it

Data sets are public as ``rop.datasets``.
"""

from rop.experiments.data import EXPERIMENTS, experiment
from rop.experiments.nets import digits_net, forest_net, usps_net
from rop.experiments.settings import SETTINGS, Experiment, penalty

__all__ = ["EXPERIMENTS", "SETTINGS", "Experiment", "digits_net", "experiment", "forest_net", "penalty", "usps_net"]
