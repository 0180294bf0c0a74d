"""The public names of the eigen-solvers."""

from rop.curvature.common import *  # noqa: F403
