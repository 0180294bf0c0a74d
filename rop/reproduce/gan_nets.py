"""The nets of the two GANs, in PyTorch. rop/reproduce/gan.py trains them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES, SIDE = 10, 16
LARGE = 2 * SIDE  # side of the images of the convolutional nets


class LinearGenerator(nn.Module):
    """Images (count, 256) from noise (count, 100) and labels; tanh is mapped onto [low, high]."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.embedding = nn.Embedding(CLASSES, CLASSES)
        parts = [nn.Linear(110, 32), nn.LeakyReLU(0.2)]
        for inputs, outputs in ((32, 64), (64, 128), (128, 256)):
            parts += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs, eps=0.8), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*parts, nn.Linear(256, SIDE**2), nn.Tanh())

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        made = self.body(torch.cat((self.embedding(labels), noise), 1))
        return self.low + (made + 1) / 2 * (self.high - self.low)


class LinearDiscriminator(nn.Module):
    """How real images (count, 256) with these labels look, in [0, 1], (count, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, CLASSES)
        parts = [nn.Linear(SIDE**2 + CLASSES, 128), nn.LeakyReLU(0.2)]
        for _ in range(2):
            parts += [nn.Linear(128, 128), nn.Dropout(0.4), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*parts, nn.Linear(128, 1), nn.Sigmoid())

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.body(torch.cat((images, self.embedding(labels)), 1))


class ConvolutionalGenerator(nn.Module):
    """Images (count, 1, 32, 32) in [−1, 1] from noise (count, 10) and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 5)
        parts = []
        for inputs, outputs, padding in ((15, 256, 0), (256, 128, 1), (128, 64, 1)):
            up = _drawn(nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=padding, bias=False))
            parts += [up, nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*parts, _drawn(nn.ConvTranspose2d(64, 1, 4, stride=2, padding=1)), nn.Tanh())

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.body(torch.cat((noise, self.embedding(labels)), 1)[:, :, None, None])


class ConvolutionalDiscriminator(nn.Module):
    """How real images (count, 1, 32, 32) with these labels look, in [0, 1], (count, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, LARGE**2)
        parts = [_drawn(nn.Conv2d(2, 64, 4, stride=2, padding=1)), nn.LeakyReLU(0.2)]
        for inputs, outputs in ((64, 128), (128, 256)):
            down = _drawn(nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False))
            parts += [down, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*parts, _drawn(nn.Conv2d(256, 1, 4)), nn.Flatten(), nn.Sigmoid())

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.body(torch.cat((images, self.embedding(labels).view(-1, 1, LARGE, LARGE)), 1))


def _drawn(layer: nn.Module) -> nn.Module:
    """The layer with weights drawn from N(0, 0.02²)."""
    nn.init.normal_(layer.weight, 0.0, 0.02)
    return layer
