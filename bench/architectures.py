"""Known architectures in the benchmark's vocabulary, written from their published descriptions.

    ResNet-18     He et al. 2015, "Deep residual learning for image recognition"
    VGG-11        Simonyan and Zisserman 2014, "Very deep convolutional networks", configuration A
    MobileNet     Howard et al. 2017, "MobileNets", version 1: depthwise-separable convolutions
    DenseNet-121  Huang et al. 2016, "Densely connected convolutional networks", bottlenecks and compression

Every function takes the number of classes, and a width, so that tests can build the same architecture with few
channels. Convolutions that a batchnorm follows have no bias. `small_images` are such of 32×32: there the first layer
does not reduce the image.
"""

from __future__ import annotations

import itertools

from .vocabulary import (
    HALVE,
    RELU,
    BatchNorm,
    Concat,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    Pool,
    Residual,
)

Layers = tuple[Layer, ...]


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Layers:
    """A convolution that keeps the size of the image but for its stride, and a batchnorm."""
    return Conv(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), BatchNorm(outputs)


def _stem(width: int) -> Layers:
    """The beginning of nets for large images, which leaves a quarter of their rows and columns."""
    return *_conv_norm(3, width, 7, stride=2), RELU, Pool("max", 3, 2, padding=1)


def _head(channels: int, classes: int) -> Layers:
    return GlobalAvgPool(), Flatten(), Linear(channels, classes)


def resnet18(classes: int, small_images: bool = False, width: int = 64) -> Layers:
    """Four stages of two residual blocks, each stage but the first with half the pixels and twice the channels.

    >>> from rop.bench.vocabulary import shape_after
    >>> shape_after(resnet18(10, width=2)[:-3], (3, 224, 224)), shape_after(resnet18(10, width=2), (3, 224, 224))
    ((16, 7, 7), (10,))
    """
    layers: list[Layer] = [*_conv_norm(3, width, 3), RELU] if small_images else [*_stem(width)]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        for stride in (2 if stage else 1, 1):
            body = (*_conv_norm(inputs, outputs, 3, stride), RELU, *_conv_norm(outputs, outputs, 3))
            shortcut = _conv_norm(inputs, outputs, 1, stride) if inputs != outputs else ()
            layers += [Residual(body, shortcut), RELU]
            inputs = outputs
    return *layers, *_head(inputs, classes)


def vgg11(classes: int, width: int = 64) -> Layers:
    """Eight convolutions with biases and no batchnorm, five of them before a pool that halves the image.

    The three wide linear layers of the original are for 224×224; at 32×32 one linear layer takes the last 1×1 pixels.

    >>> from rop.bench.vocabulary import shape_after
    >>> shape_after(vgg11(10, width=2)[:-2], (3, 32, 32))
    (16, 1, 1)
    """
    layers: list[Layer] = []
    inputs = 3
    for factor, halve in ((1, True), (2, True), (4, False), (4, True), (8, False), (8, True), (8, False), (8, True)):
        outputs = factor * width
        layers += [Conv(inputs, outputs, 3, padding=1), RELU, *([HALVE] if halve else [])]
        inputs = outputs
    return *layers, Flatten(), Linear(inputs, classes)


def mobilenet(classes: int, small_images: bool = False, width: int = 32) -> Layers:
    """Thirteen pairs of a depthwise 3×3 and a 1×1 convolution, each of them before a batchnorm and a ReLU.

    >>> from rop.bench.vocabulary import shape_after
    >>> shape_after(mobilenet(10, width=2)[:-3], (3, 224, 224))
    (64, 7, 7)
    """
    layers: list[Layer] = [*_conv_norm(3, width, 3, stride=1 if small_images else 2), RELU]
    factors = (1, 2, 4, 4, 8, 8, *[16] * 6, 32, 32)  # of the width: the channels of the first layer and of every pair
    for k, (before, after) in enumerate(itertools.pairwise(factors)):
        inputs, outputs = before * width, after * width
        stride = 2 if k and outputs > inputs else 1
        layers += [*_conv_norm(inputs, inputs, 3, stride, groups=inputs), RELU, *_conv_norm(inputs, outputs, 1), RELU]
    return *layers, *_head(factors[-1] * width, classes)


def densenet121(classes: int, growth: int = 32, blocks: tuple[int, ...] = (6, 12, 24, 16)) -> Layers:
    """Blocks of layers that each see all before them in their block; between blocks half of the channels go on.

    >>> from rop.bench.vocabulary import shape_after
    >>> shape_after(densenet121(14, growth=2)[:-3], (3, 64, 64))
    (64, 2, 2)
    """
    channels = 2 * growth
    layers: list[Layer] = [*_stem(channels)]
    for k, size in enumerate(blocks):
        if k:
            layers += [BatchNorm(channels), RELU, Conv(channels, channels // 2, 1, bias=False), Pool("avg", 2, 2)]
            channels //= 2
        for _ in range(size):
            layers.append(Concat(((), _dense(channels, growth))))
            channels += growth
    return *layers, BatchNorm(channels), RELU, *_head(channels, classes)


def _dense(inputs: int, growth: int) -> Layers:
    """A layer of DenseNet: a bottleneck of four times as many channels as the layer adds."""
    bottleneck = _conv_norm(inputs, 4 * growth, 1)
    return BatchNorm(inputs), RELU, *bottleneck, RELU, Conv(4 * growth, growth, 3, padding=1, bias=False)
