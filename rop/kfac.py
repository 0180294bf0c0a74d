"""K-FAC, a positive semidefinite approximation of the Hessian that can be inverted; see rop/curvature/kfac.py.

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(3, 8), rop.Tanh(), rop.Linear(8, 2))
>>> x, y = np.random.default_rng(0).standard_normal((64, 3)), np.arange(64) % 2
>>> p = rop.Objective(net, rop.CrossEntropy(), x, y).at(net.init())
>>> rop.kfac.kfac(p, damping=0.1)
Kfac(2 blocks, n=50, damping=0.1)
"""

from rop.curvature.kfac import Block, Kfac, Shifted, kfac

__all__ = ["Block", "Kfac", "Shifted", "kfac"]
