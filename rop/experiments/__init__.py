"""The paper's experiments: data sets, nets and settings, and run folders."""

from rop.experiments.settings import (
    EXPERIMENTS,
    SETTINGS,
    Experiment,
    digits_net,
    experiment,
    forest_net,
    penalty,
    usps_net,
)

__all__ = ["EXPERIMENTS", "SETTINGS", "Experiment", "digits_net", "experiment", "forest_net", "penalty", "usps_net"]
