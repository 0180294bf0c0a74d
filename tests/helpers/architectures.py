"""Well-known architectures as anybody would write them in PyTorch, and what autograd says about their derivatives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rop.check.reference import batch_statistics, differentiate, normalise, scaled, standardise

# ---------------------------------------------------------------------------------------------------------------
# the paper's two nets
# ---------------------------------------------------------------------------------------------------------------


class Forest(nn.Module):
    """54 → 20 → 20 → 20 → 7 with one inner layer used twice, and softmax outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(54, 20), nn.Linear(20, 20), nn.Linear(20, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for _ in range(2):
            x = F.relu(self.inner(x))
        return F.softmax(self.last(x), dim=1)


class USPS(nn.Module):
    """Three convolutions with ReLU and max pooling on 16×16 images, then 64 and 10 nodes."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ((1, 8), (8, 16), (16, 32))
        blocks = [nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for i, o in pairs]
        self.features = nn.Sequential(*blocks)
        self.hidden, self.output = nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).reshape(x.shape[0], -1)
        return torch.softmax(self.output(torch.relu(self.hidden(x))), 1)


# ---------------------------------------------------------------------------------------------------------------
# LeNet, ResNet-18, DenseNet-121
# ---------------------------------------------------------------------------------------------------------------


class LeNet(nn.Module):
    """LeNet-5 on 28×28 images, with the tanh and the average pooling of 1998."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), (2, 2))
        x = x.view(-1, 16 * 5 * 5)
        x = F.tanh(self.fc1(x))
        return self.fc3(self.fc2(x).tanh())


class BasicBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride > 1 or inputs != channels:
            shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """Four stages of two blocks, as torchvision writes them; the width is free."""

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for stage in range(4):
            wider, stride = width * 2**stage, 1 if stage == 0 else 2
            blocks = BasicBlock(channels, wider, stride), BasicBlock(wider, wider, 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            channels = wider
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DenseLayer(nn.Module):
    """Bottleneck and convolution, both with batchnorm and ReLU before them."""

    def __init__(self, inputs: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = dropout

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        x = self.conv2(self.relu2(self.norm2(x)))
        return F.dropout(x, p=self.dropout, training=self.training)


class DenseNet121(nn.Module):
    """The paper's chest X-ray model: dense blocks of 6, 12, 24 and 16 layers, 14 labels. The growth rate is free."""

    def __init__(self, growth: int = 2, labels: int = 14, dropout: float = 0.0) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv0 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm0, self.pool0 = nn.BatchNorm2d(channels), nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for layers in (6, 12, 24, 16):
            block = [DenseLayer(channels + i * growth, growth, dropout) for i in range(layers)]
            self.blocks.append(nn.ModuleList(block))
            channels += layers * growth
            if layers != 16:
                narrow = nn.Conv2d(channels, channels // 2, 1, bias=False)
                self.transitions.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), narrow, nn.AvgPool2d(2, 2)))
                channels //= 2
        self.norm5 = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, labels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool0(F.relu(self.norm0(self.conv0(x)), inplace=True))
        for i, block in enumerate(self.blocks):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = torch.cat(features, 1)
            if i < len(self.transitions):
                x = self.transitions[i](x)
        x = F.relu(self.norm5(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class Excitation(nn.Module):
    """Squeeze-and-excitation: the mean of each channel says, through two 1×1 convolutions, how much of it goes on."""

    def __init__(self, channels: int, squeezed: int, gate: nn.Module) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.relu, self.gate = nn.ReLU(), gate

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.fc2(self.relu(self.fc1(self.avgpool(x))))) * x


class SENet(nn.Module):
    """Inverted residuals as in MobileNetV3: wide, depthwise, excited, narrow again; then spatial attention."""

    def __init__(self, width: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        self.blocks = nn.ModuleList(self._block(width, 3 * width, gate) for gate in (nn.Sigmoid(), nn.Hardsigmoid()))
        self.attention = nn.Conv2d(width, 1, 3, padding=1)
        self.head = nn.Linear(width, classes)

    @staticmethod
    def _block(width: int, wide: int, gate: nn.Module) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU()),
            Excitation(wide, width, gate),
            *(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        x = x * torch.sigmoid(self.attention(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class NormNet(nn.Module):
    """Every normalisation by a sample's own statistics, in a residual net with a head of vectors."""

    def __init__(self, width: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.GroupNorm(2, width), nn.ReLU())
        self.block = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, groups=width), nn.InstanceNorm2d(width, affine=True), nn.GELU()),
            *(nn.Conv2d(width, width, 1), nn.InstanceNorm2d(width)),
        )
        self.norm, self.hidden = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 2 * width)
        self.last = nn.Sequential(nn.SiLU(), nn.RMSNorm(2 * width), nn.Linear(2 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.adaptive_avg_pool2d(x + self.block(x), 1).flatten(1)
        return self.last(self.hidden(self.norm(x)))


@dataclass(frozen=True)
class Architecture:
    """A module, a loss of torch, and the data it is for."""

    make: Callable[[], nn.Module]
    loss: nn.Module
    shape: tuple[int, ...]
    outputs: int

    def module(self, seed: int = 0) -> nn.Module:
        """The module in float64, with no parameter or statistic at a special value such as γ = 1."""
        torch.manual_seed(seed)
        module = self.make().double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            for name, buffer in module.named_buffers():
                if name.endswith(("mean", "var")):
                    buffer += torch.rand_like(buffer)
        return module

    def data(self, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        torch.manual_seed(seed + 1)
        x = torch.randn(batch, *self.shape, dtype=torch.float64)
        if isinstance(self.loss, nn.BCEWithLogitsLoss):
            return x, torch.randint(0, 2, (batch, self.outputs)).double()
        return x, torch.randint(0, self.outputs, (batch,))


ARCHITECTURES = {
    "forest": Architecture(Forest, nn.CrossEntropyLoss(), (54,), 7),
    "usps": Architecture(USPS, nn.CrossEntropyLoss(), (1, 16, 16), 10),
    "LeNet": Architecture(LeNet, nn.CrossEntropyLoss(label_smoothing=0.1), (1, 28, 28), 10),
    "ResNet-18": Architecture(ResNet18, nn.CrossEntropyLoss(), (3, 32, 32), 10),
    "SENet": Architecture(SENet, nn.CrossEntropyLoss(), (3, 13, 12), 5),
    "NormNet": Architecture(NormNet, nn.CrossEntropyLoss(), (3, 11, 12), 5),
    "DenseNet-121": Architecture(DenseNet121, nn.BCEWithLogitsLoss(), (3, 32, 32), 14),
}


# ---------------------------------------------------------------------------------------------------------------
# autograd
# ---------------------------------------------------------------------------------------------------------------


class PrimitiveBatchNorm(nn.Module):
    """Batchnorm written out, because torch's fused one is wrong at third order in training mode."""

    def __init__(self, fused: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = fused.weight, fused.bias, fused.eps
        self.running = fused.running_mean, fused.running_var

    def forward(self, x: Tensor) -> Tensor:
        mean, var = batch_statistics(x) if self.training else self.running
        return normalise(x, mean, var, self.eps, {"weight": self.weight, "bias": self.bias})


class PrimitiveSampleNorm(nn.Module):
    """Layer, instance, group and RMS norm written out, because torch's own are not all right at third order."""

    def __init__(self, fused: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.fused = fused.weight, getattr(fused, "bias", None), [fused]

    def forward(self, x: Tensor) -> Tensor:
        (fused,) = self.fused  # in a list, so that its parameters are not registered twice
        groups = {nn.GroupNorm: "num_groups", nn.InstanceNorm2d: "num_features"}.get(type(fused))
        sets = x.reshape(len(x), getattr(fused, groups) if groups else 1, -1)
        if isinstance(fused, nn.RMSNorm):
            eps = torch.finfo(x.dtype).eps if fused.eps is None else fused.eps
            y = sets * ((sets**2).mean(2, keepdim=True) + eps) ** -0.5
        else:
            y = standardise(sets, (2,), fused.eps)
        parameters = {"weight": self.weight, "bias": self.bias}
        return scaled(y.reshape(x.shape), {name: one for name, one in parameters.items() if one is not None})


class PrimitiveHardsigmoid(nn.Module):
    """Hardsigmoid written out, because torch's own cannot be differentiated twice."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x + 3) / 6


SAMPLE_NORMS = nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm2d


def written_out(module: nn.Module) -> nn.Module:
    """A copy of the module with normalisations and Hardsigmoid in primitives; its parameters have the same names."""
    module = copy.deepcopy(module)
    for path, child in list(module.named_modules()):
        made: nn.Module
        if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
            made = PrimitiveBatchNorm(child)
        elif isinstance(child, SAMPLE_NORMS):
            made = PrimitiveSampleNorm(child)
        elif isinstance(child, nn.Hardsigmoid):
            made = PrimitiveHardsigmoid()
        else:
            continue
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, made.train(child.training))
    return module


def objective(module: nn.Module, loss: Callable[..., Tensor], x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """w ↦ loss(module(x), y), w in the order of module.parameters()."""
    module = written_out(module)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}

    def function(w: Tensor) -> Tensor:
        parts = w.split([shape.numel() for shape in shapes.values()])
        views = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return loss(torch.func.functional_call(module, views, (x,)), y)

    return function


def autograd(module: nn.Module, loss: Callable[..., Tensor], x: Tensor, y: Tensor, v: np.ndarray) -> list[np.ndarray]:
    """Loss, gradient, H v and vᵀ∇H v by triple backward through the module itself."""
    w = torch.nn.utils.parameters_to_vector(module.parameters())
    return [part.numpy() for part in differentiate(objective(module, loss, x, y), w, torch.tensor(v))]
