"""The public names of K-FAC."""

from rop.curvature.kfac import *  # noqa: F403
