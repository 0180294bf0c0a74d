"""The public names of the data sets."""

from rop.experiments.files import *  # noqa: F403
