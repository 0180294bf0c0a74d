"""Grad-CAM: which pixels a net looks at (Selvaraju et al. 2017), and how far two nets agree on them.

With a (channels, height, width) the activations of a layer and s the score of a class, the map of an image is

    L = ReLU(Σ_c α_c a_c),   α_c = mean over pixels of ∂s/∂a_c.

The engine has gradients with respect to parameters, not to activations. For nets that end in global average pooling and
a linear layer, as DenseNet and ResNet do, ∂s/∂a_c is known in closed form: W[s, c] / pixels after the last ReLU, and
the same where a > 0, else 0, before it. Other heads are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rop import layers
from rop.arguments import check_fraction, check_int
from rop.errors import ArgumentError
from rop.graph import Graph, Node

TOP = 0.1  # share of the pixels that the paper compares


def gradcam(
    net: Graph,
    w: np.ndarray,
    x: np.ndarray,
    scores: np.ndarray,
    layer: str = "norm5",
    state: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Maps (count, height, width) of the images x (count, channels, …) at a layer, by its name.

    Args:
        net: a net that goes on from this layer with at most one ReLU, global average pooling, Flatten and Linear.
        w, state: its parameters and running statistics; batchnorm is in evaluation mode.
        x: images.
        scores: of each image the number of the output whose gradient is taken.
        layer: the name of a layer of the net.

    >>> import rop
    >>> net = rop.Sequential(rop.Conv2d(1, 1, 1, bias=False), rop.AdaptiveAvgPool2d(1), rop.Flatten(), rop.Linear(1, 2))
    >>> w = np.array([1.0, 4.0, -4.0, 0.0, 0.0])                       # a = x, the scores are ±4·mean(a)
    >>> gradcam(net, w, np.array([[[[1.0, 0.0], [0.0, 2.0]]]]), np.array([0]), layer="0")
    array([[[1., 0.],
            [0., 2.]]])
    """
    node, has_relu = _node_before_the_head(net, layer)
    a = _activations(net, node, w, x, state)  # (count, channels, height, width)
    weight = net.params(w)[f"{net.name_of(_layer(net.output))}.weight"]  # (outputs, channels)
    chosen = np.asarray(scores)
    if chosen.shape != (len(a),) or chosen.dtype.kind not in "iu":
        raise ArgumentError(
            f"gradcam: scores must have the number of an output for each of the {len(a)} images, got an array of "
            f"{chosen.dtype} with shape {chosen.shape}"
        )
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(weight):
        raise ArgumentError(f"gradcam: scores must be in [0, {len(weight) - 1}], got {chosen.min()} … {chosen.max()}")
    pixels = a.shape[2] * a.shape[3]
    passed = (a > 0).mean(axis=(2, 3)) if has_relu else 1.0  # where ReLU lets the gradient through
    alpha = weight[chosen] / pixels * passed  # (count, channels)
    return np.maximum(np.einsum("nc,nchw->nhw", alpha, a), 0)


def enlarged(maps: np.ndarray, side: int) -> np.ndarray:
    """Maps (count, height, width) as (count, side, side), by bilinear interpolation between the centres of pixels; the
    outermost values go on to the border.

    >>> enlarged(np.array([[[0.0, 1.0]]]), 4)[0, 0]
    array([0.  , 0.25, 0.75, 1.  ])
    """
    rows, columns = (_interpolation(size, check_int("enlarged", "side", side)) for size in maps.shape[1:])
    return np.asarray(rows @ maps @ columns.T)


def top(maps: np.ndarray, share: float = TOP) -> np.ndarray:
    """Of each map (count, height, width) the pixels above its 1 − share quantile; a map that is constant has none.

    >>> top(np.arange(10.0).reshape(1, 2, 5), 0.2).astype(int)
    array([[[0, 0, 0, 0, 0],
            [0, 0, 0, 1, 1]]])
    """
    limits = np.quantile(maps, 1 - check_fraction("top", "share", share), axis=(1, 2), keepdims=True)
    return np.asarray(maps > limits)


def jaccard(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a ∩ b| / |a ∪ b| of each pair of masks (count, height, width): how many of the pixels in either are in both. NaN
    where both are empty.

    >>> jaccard(np.array([[[True, True, False]]]), np.array([[[False, True, True]]])).round(3)
    array([0.333])
    """
    both, either = ((part).sum(axis=(1, 2)) for part in (a & b, a | b))
    return np.divide(both, either, out=np.full(len(both), np.nan), where=either > 0)


def _node_before_the_head(net: Graph, layer: str) -> tuple[Node, bool]:
    """The last use of the named layer, and whether a ReLU follows it, after a check of what else follows."""
    node = next((node for node in net.nodes[:0:-1] if net.name_of(_layer(node)) == layer), None)
    if node is None:
        raise ArgumentError(f"gradcam: layer must be the name of a layer of the net, got {layer!r}")
    after = net.nodes[net.nodes.index(node) + 1 :]
    kinds = [type(_layer(n)) for n in after]
    has_relu = kinds[:1] == [layers.ReLU]
    expected = [layers.AdaptiveAvgPool2d, layers.Flatten, layers.Linear]
    chain = all(n.inputs == (before,) for before, n in zip((node, *after), after, strict=False))
    pooled = [_layer(n) for n in after if isinstance(_layer(n), layers.AdaptiveAvgPool2d)]
    if kinds[has_relu:] != expected or not chain or pooled[0].output_size != (1, 1):  # type: ignore[attr-defined]
        found = ", ".join(_layer(n).describe() for n in after) or "nothing"
        raise ArgumentError(
            f"gradcam: after the layer {layer!r} expected at most one ReLU, AdaptiveAvgPool2d(1), Flatten and Linear, "
            f"for which the gradient is known in closed form; got {found}; name a later layer"
        )
    return node, has_relu


def _activations(
    net: Graph, node: Node, w: np.ndarray, x: np.ndarray, state: Mapping[str, np.ndarray] | None
) -> np.ndarray:
    """The value of a node in evaluation mode, computed as the output of the net that ends there."""
    used = {_layer(n) for n in net.nodes[1 : net.nodes.index(node) + 1]}
    part = Graph(net.input, node, names={layer: net.name_of(layer) for layer in net.layers if layer in used})
    every, own = net.params(w), np.empty(part.size, w.dtype)
    for name, view in part.params(own).items():
        view[...] = every[name]
    kept = part.init_state()
    return part.predict(own, x, {name: state[name] for name in kept} if state else None)


def _layer(node: Node) -> layers.Layer:
    assert node.layer is not None
    return node.layer


def _interpolation(size: int, side: int) -> np.ndarray:
    """The matrix (side, size) that interpolates between the centres of ``size`` pixels."""
    places = ((np.arange(side) + 0.5) * size / side - 0.5).clip(0, size - 1)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(size)))
