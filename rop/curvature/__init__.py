"""Curvature of an objective: its Hessian as an operator, eigenvalues, spectral density, trace and K-FAC."""
