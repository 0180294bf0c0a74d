"""Appendix A, "Hessian-Vector Operations Derivation": its fifteen equations as printed, for one sample.

Index letters are the paper's: Σ_j w_jk y_j is einsum("jk,j->k", w, y). An array w has the axes (from, to), as the first
equation has it: w_jk goes from unit j of the layer before to unit k. s = (σ, σ′, σ″, σ‴) at x_k; e, e1, e2 are e_k and
its derivatives by y_k; v has the shape of w. Units of the last layer have no weights behind them, all others e_k = 0.

A function whose name ends in `_corrected` replaces the one above it; there the net has a bias b inside σ that is a
parameter like any other (its part of v is c), and e1 (k, l) and e2 (k, l, m) are all derivatives of e_k, not only those
by y_k itself.
"""

from __future__ import annotations

import numpy as np
from numpy import einsum

Array = np.ndarray
Derivatives = tuple[Array, Array, Array, Array]

# ---- forward ---------------------------------------------------------------------------------------------------------


def x(w: Array, y: Array) -> Array:
    """(1) x_k = Σ_j w_jk y_j(k−1)"""
    return einsum("jk,j->k", w, y)


def x_corrected(w: Array, b: Array, y: Array) -> Array:
    """x_k = Σ_j w_jk y_j + b_k"""
    return einsum("jk,j->k", w, y) + b


def y(s: Derivatives, I: Array) -> Array:
    """(2) y_k = σ_k(x_k) + I_k"""
    return s[0] + I


def y_corrected(s: Derivatives) -> Array:
    """y_k = σ(x_k): the bias is in x_k"""
    return s[0]


# ---- backward --------------------------------------------------------------------------------------------------------


def dE_dy(e: Array, w: Array, dE_dx: Array) -> Array:
    """(3) ∂E/∂y_k = e_k(y_k) + Σ_j w_jk ∂E/∂x_j"""
    return e + einsum("jk,j->k", w, dE_dx)


def dE_dy_corrected(e: Array, w: Array, dE_dx: Array) -> Array:
    """∂E/∂y_k = e_k + Σ_j w_kj ∂E/∂x_j: j is in the layer behind k, so w goes from k to j"""
    return e + einsum("kj,j->k", w, dE_dx)


def dE_dx(s: Derivatives, dE_dy: Array) -> Array:
    """(4) ∂E/∂x_k = σ′(x_k) ∂E/∂y_k"""
    return s[1] * dE_dy


def dE_dw(y: Array, dE_dx: Array) -> Array:
    """(5) ∂E/∂w_jk = y_k ∂E/∂x_j"""
    return einsum("k,j->jk", y, dE_dx)


def dE_dw_corrected(y: Array, dE_dx: Array) -> Array:
    """∂E/∂w_jk = y_j ∂E/∂x_k"""
    return einsum("j,k->jk", y, dE_dx)


def dE_db_corrected(dE_dx: Array) -> Array:
    """∂E/∂b_k = ∂E/∂x_k, and so for R and R²: the appendix has no equation for it"""
    return dE_dx


# ---- R, forward ------------------------------------------------------------------------------------------------------


def R_x(w: Array, v: Array, y: Array, R_y: Array) -> Array:
    """(6) R{x_k} = Σ_j (w_jk R{y_j(k−1)} + v_jk y_j(k−1))"""
    return einsum("jk,j->k", w, R_y) + einsum("jk,j->k", v, y)


def R_x_corrected(w: Array, v: Array, c: Array, y: Array, R_y: Array) -> Array:
    """R{x_k} = Σ_j (w_jk R{y_j} + v_jk y_j) + c_k"""
    return einsum("jk,j->k", w, R_y) + einsum("jk,j->k", v, y) + c


def R_y(s: Derivatives, R_x: Array) -> Array:
    """(7) R{y_k} = R{x_k} σ′(x_k)"""
    return R_x * s[1]


# ---- R, backward -----------------------------------------------------------------------------------------------------


def R_dE_dy(e1: Array, R_y: Array, w: Array, v: Array, dE_dx: Array, R_dE_dx: Array) -> Array:
    """(8) R{∂E/∂y_k} = e′_k(y_k) R{y_k} + Σ_j [w_jk R{∂E/∂x_j} + v_jk ∂E/∂x_j]"""
    return e1 * R_y + einsum("jk,j->k", w, R_dE_dx) + einsum("jk,j->k", v, dE_dx)


def R_dE_dy_corrected(e1: Array, R_y: Array, w: Array, v: Array, dE_dx: Array, R_dE_dx: Array) -> Array:
    """R{∂E/∂y_k} = Σ_l ∂e_k/∂y_l R{y_l} + Σ_j [w_kj R{∂E/∂x_j} + v_kj ∂E/∂x_j]"""
    return einsum("kl,l->k", e1, R_y) + einsum("kj,j->k", w, R_dE_dx) + einsum("kj,j->k", v, dE_dx)


def R_dE_dx(s: Derivatives, R_x: Array, dE_dy: Array, R_dE_dy: Array) -> Array:
    """(9) R{∂E/∂x_k} = σ′(x_k) R{∂E/∂y_k} + R{x_k} σ″(x_k) ∂E/∂y_k"""
    return s[1] * R_dE_dy + R_x * s[2] * dE_dy


def R_dE_dw(y: Array, R_y: Array, dE_dx: Array, R_dE_dx: Array) -> Array:
    """(10) R{∂E/∂w_jk} = y_k R{∂E/∂x_j} + R{y_k} ∂E/∂x_j"""
    return einsum("k,j->jk", y, R_dE_dx) + einsum("k,j->jk", R_y, dE_dx)


def R_dE_dw_corrected(y: Array, R_y: Array, dE_dx: Array, R_dE_dx: Array) -> Array:
    """R{∂E/∂w_jk} = y_j R{∂E/∂x_k} + R{y_j} ∂E/∂x_k"""
    return einsum("j,k->jk", y, R_dE_dx) + einsum("j,k->jk", R_y, dE_dx)


# ---- R², forward -----------------------------------------------------------------------------------------------------


def R2_x(w: Array, v: Array, R_y: Array, R2_y: Array) -> Array:
    """(11) R²{x_k} = Σ_j [w_ji R²{y_j(k−1)} + 2 v_jk R{y_j(k−1)}]: there is no i on the left, so NumPy refuses"""
    return einsum("ji,j->k", w, R2_y) + 2 * einsum("jk,j->k", v, R_y)


def R2_x_corrected(w: Array, v: Array, R_y: Array, R2_y: Array) -> Array:
    """R²{x_k} = Σ_j [w_jk R²{y_j} + 2 v_jk R{y_j}]"""
    return einsum("jk,j->k", w, R2_y) + 2 * einsum("jk,j->k", v, R_y)


def R2_y(s: Derivatives, R_x: Array, R2_x: Array) -> Array:
    """(12) R²{y_k} = R²{x_k} σ′(x_k) + (R{x_k})² σ″(x_k)"""
    return R2_x * s[1] + R_x**2 * s[2]


# ---- R², backward ----------------------------------------------------------------------------------------------------


def R2_dE_dy(
    e1: Array, e2: Array, R_y: Array, R2_y: Array, w: Array, v: Array, R_dE_dx: Array, R2_dE_dx: Array
) -> Array:
    """(13) R²{∂E/∂y_k} = e″_k(y_k) (R{y_k})² + e′_k(y_k) R²{y_k} + Σ_j [w_jk R²{∂E/∂x_j} + 2 v_jk R{∂E/∂x_j}]"""
    return e2 * R_y**2 + e1 * R2_y + einsum("jk,j->k", w, R2_dE_dx) + 2 * einsum("jk,j->k", v, R_dE_dx)


def R2_dE_dy_corrected(
    e1: Array, e2: Array, R_y: Array, R2_y: Array, w: Array, v: Array, R_dE_dx: Array, R2_dE_dx: Array
) -> Array:
    """R²{∂E/∂y_k} = Σ_lm ∂²e_k/∂y_l∂y_m R{y_l} R{y_m} + Σ_l ∂e_k/∂y_l R²{y_l} + Σ_j [w_kj R²{…} + 2 v_kj R{…}]"""
    seed = einsum("klm,l,m->k", e2, R_y, R_y) + einsum("kl,l->k", e1, R2_y)
    return seed + einsum("kj,j->k", w, R2_dE_dx) + 2 * einsum("kj,j->k", v, R_dE_dx)


def R2_dE_dx(s: Derivatives, R_x: Array, R2_x: Array, dE_dy: Array, R_dE_dy: Array, R2_dE_dy: Array) -> Array:
    """(14) R²{∂E/∂x_k} = 2 R{x_k} σ″ R{∂E/∂y_k} + σ′ R²{∂E/∂y_k} + R²{x_k} σ″ ∂E/∂y_k + (R{x_k})² σ‴ ∂E/∂y_k"""
    return 2 * R_x * s[2] * R_dE_dy + s[1] * R2_dE_dy + R2_x * s[2] * dE_dy + R_x**2 * s[3] * dE_dy


def R2_dE_dw(y: Array, R_y: Array, R2_y: Array, dE_dx: Array, R_dE_dx: Array, R2_dE_dx: Array) -> Array:
    """(15) R²{∂E/∂w_jk} = 2 R{y_k} R{∂E/∂x_j} + y_k R²{∂E/∂x_j} + R²{y_k} ∂E/∂x_j"""
    return 2 * einsum("k,j->jk", R_y, R_dE_dx) + einsum("k,j->jk", y, R2_dE_dx) + einsum("k,j->jk", R2_y, dE_dx)


def R2_dE_dw_corrected(y: Array, R_y: Array, R2_y: Array, dE_dx: Array, R_dE_dx: Array, R2_dE_dx: Array) -> Array:
    """R²{∂E/∂w_jk} = 2 R{y_j} R{∂E/∂x_k} + y_j R²{∂E/∂x_k} + R²{y_j} ∂E/∂x_k"""
    return 2 * einsum("j,k->jk", R_y, R_dE_dx) + einsum("j,k->jk", y, R2_dE_dx) + einsum("j,k->jk", R2_y, dE_dx)


# ---- what the equations are fed with ---------------------------------------------------------------------------------


def tanh(x: Array) -> Derivatives:
    """σ, σ′, σ″, σ‴ of the activation that the tests use."""
    t = np.tanh(x)
    d = 1 - t**2
    return t, d, -2 * t * d, (6 * t**2 - 2) * d


def separable_seeds(y: Array, t: Array) -> tuple[Array, Array, Array]:
    """e_k, e′_k, e″_k of E = Σ_k log(1 + exp y_k) − t_k y_k, in which no unit knows of another."""
    p = 1 / (1 + np.exp(-y))
    return p - t, p * (1 - p), p * (1 - p) * (1 - 2 * p)


def coupled_seeds(y: Array, t: Array) -> tuple[Array, Array, Array]:
    """e_k, ∂e_k/∂y_l, ∂²e_k/∂y_l∂y_m of softmax with cross-entropy, E = −Σ_k t_k log p_k with Σ_k t_k = 1."""
    p = np.exp(y - y.max())
    p /= p.sum()
    one = np.eye(len(y))
    slope = p[:, None] * (one - p)  # ∂p_k/∂y_l
    bend = einsum("kl,km->klm", slope, one - p) - einsum("k,lm->klm", p, slope)
    return p - t, slope, bend
