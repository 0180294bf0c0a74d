"""The running statistics of batchnorm layers, for the steps that update them in Python."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rop.graph import Graph
from rop.kernels.rules import averaged
from rop.layers.batchnorm import BatchNorm


class RunningAverages:
    """The running statistics of every batchnorm layer, each with its own momentum; ``state`` is changed in place."""

    def __init__(self, net: Graph, state: dict[str, np.ndarray]):
        self.state = state
        self._parts = {
            net.name_of(node.layer): node.layer.momentum for node in net.nodes if isinstance(node.layer, BatchNorm)
        }

    def take_in(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Moves them towards the statistics of a batch."""
        for name, running in self.state.items():
            running[...] = averaged(running, statistics[name], self._parts[name.rpartition(".")[0]])
