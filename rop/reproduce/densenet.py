"""DenseNet-121, the paper's net for chest X-rays (Huang et al. 2016), with any number of layers and channels."""

from __future__ import annotations

from collections.abc import Sequence

import rop
from rop.arguments import check_int
from rop.graph import Graph, Node
from rop.layers.base import Layer

BLOCKS = (6, 12, 24, 16)  # layers in each dense block of DenseNet-121


def densenet(labels: int = 14, channels: int = 1, growth: int = 32, blocks: Sequence[int] = BLOCKS) -> Graph:
    """DenseNet with an output for each label: logits, for BCEWithLogits.

    A layer of a block sees the outputs of all layers before it and adds ``growth`` channels, by a 1×1 convolution to
    4·growth channels and a 3×3 convolution, each after a batchnorm and a ReLU. Between blocks a 1×1 convolution halves
    the channels and an average pooling the pixels. Layers have torchvision's names, without "features".

    >>> net = densenet()
    >>> net.size, net.shapes((1, 64, 64))[net.nodes[-4]]
    (6961934, (1024, 2, 2))
    """
    labels, channels = check_int("densenet", "labels", labels), check_int("densenet", "channels", channels)
    growth = check_int("densenet", "growth", growth)
    names: dict[Layer, str] = {}

    def use(name: str, layer: Layer, *inputs: Node) -> Node:
        names[layer] = name
        return layer(*inputs)

    def normalised(name: str, width: int, x: Node) -> Node:
        return use(name.replace("norm", "relu"), rop.ReLU(), use(name, rop.BatchNorm2d(width), x))

    width = 2 * growth
    start = rop.Input()
    x = use("conv0", rop.Conv2d(channels, width, 7, stride=2, padding=3, bias=False), start)
    x = use("pool0", rop.MaxPool2d(3, stride=2, padding=1), normalised("norm0", width, x))
    for k, layers in enumerate(blocks, 1):
        for i in range(1, layers + 1):
            name = f"denseblock{k}.denselayer{i}"
            y = normalised(f"{name}.norm1", width, x)
            y = use(f"{name}.conv1", rop.Conv2d(width, 4 * growth, 1, bias=False), y)
            y = normalised(f"{name}.norm2", 4 * growth, y)
            y = use(f"{name}.conv2", rop.Conv2d(4 * growth, growth, 3, padding=1, bias=False), y)
            x = use(f"{name}.concat", rop.Concat(), x, y)
            width += growth
        if k < len(blocks):
            x = normalised(f"transition{k}.norm", width, x)
            x = use(f"transition{k}.conv", rop.Conv2d(width, width // 2, 1, bias=False), x)
            x = use(f"transition{k}.pool", rop.AvgPool2d(2), x)
            width //= 2
    x = normalised("norm5", width, x)
    x = use("flatten", rop.Flatten(), use("pool5", rop.AdaptiveAvgPool2d(1), x))
    return Graph(start, use("classifier", rop.Linear(width, labels), x), names=names)
