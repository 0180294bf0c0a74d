"""Digits drawn by two conditional GANs, which the paper uses as test sets: GAN1 and GAN2, trained with PyTorch.

GAN1 is a net of linear layers (after Linder-Norén's collection), GAN2 one of convolutions (after Chhabra's). Both are
trained on all 7,291 images of the publishers' training file. The published code has slips, which are options here:

    GAN1  output="tanh"     the generator ends in tanh, in [−1, 1], but is trained on, and gives, normalised pixels,
                            whose range is [−0.82, 2.53]: ink comes out grey. output="scaled" maps [−1, 1] onto the
                            range of the pixels.
          sampling="train"  the images are made with batchnorm in training mode, so that they depend on each other;
                            sampling="evaluation" uses its running statistics.
    GAN2  eight_bits="wrap" images in [−1, 1] become 8 bits by 255·x modulo 256, so that the dark grey of −0.5 becomes
                            the light grey 129; eight_bits="scaled" takes 255·(x + 1)/2.

Images are kept as 8 bits each, in a compressed file of some megabytes. For GAN1 with output="tanh", whose images are no
grey levels, that rounds normalised pixels by at most 1/255, a third of the step between two grey levels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rop.arguments import check_choice, check_int
from rop.errors import ArgumentError, missing_package
from rop.experiments.data.usps import from_grey_levels
from rop.experiments.dataset import Part
from rop.reproduce.augment import resized

CLASSES, SIDE = 10, 16
IMAGES = 10_000


@dataclass(frozen=True)
class GAN1:
    """The conditional GAN of linear layers.

    Generator 110-32-64-128-256-256, batchnorm (eps 0.8) from the second layer on, LeakyReLU 0.2, tanh, on 100 normal
    numbers and an embedding of the label; discriminator 266-128-128-128-1, dropout 0.4, sigmoid. Binary cross-entropy
    with random targets, U(0.7, 1) for real and U(0, 0.3) for drawn images, which change places in 1 % of the batches.
    Adam (10⁻⁴, betas 0.5 and 0.999, weight decay 2·10⁻⁵), rate annealed by a cosine.

    >>> GAN1().epochs, GAN1(epochs=2).batch_size
    (200, 64)
    """

    epochs: int = 200
    batch_size: int = 64
    images: int = IMAGES
    seed: int = 0
    output: str = "tanh"
    sampling: str = "train"

    def __post_init__(self) -> None:
        _check_counts(self)
        check_choice("GAN1", "output", self.output, ("tanh", "scaled"))
        check_choice("GAN1", "sampling", self.sampling, ("train", "evaluation"))


@dataclass(frozen=True)
class GAN2:
    """The conditional GAN of convolutions, on images of 32×32 pixels.

    Generator: 10 normal numbers and an embedding of the label in 5, four transposed convolutions (4×4, 256-128-64-1
    channels) with batchnorm and ReLU, tanh. Discriminator: the image and an embedding of the label as a second channel,
    four convolutions (4×4, 64-128-256-1) with batchnorm in the middle two, LeakyReLU 0.2, sigmoid. Binary
    cross-entropy, Adam (2·10⁻⁴, betas 0.5 and 0.999, weight decay 2·10⁻⁵). Drawn images are brought to 16×16 by Pillow.

    >>> GAN2().epochs, GAN2().batch_size
    (100, 256)
    """

    epochs: int = 100
    batch_size: int = 256
    images: int = IMAGES
    seed: int = 0
    eight_bits: str = "wrap"

    def __post_init__(self) -> None:
        _check_counts(self)
        check_choice("GAN2", "eight_bits", self.eight_bits, ("wrap", "scaled"))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Images drawn by a GAN.

    Args:
        levels: (count, 16, 16) uint8.
        labels: (count,) uint8, which digit was asked for.
        grey: whether levels are grey levels; if not, level / 127.5 − 1 is a normalised pixel.
        settings: of the GAN, with its kind.
        losses: mean losses of (discriminator, generator) of every epoch.
    """

    levels: np.ndarray
    labels: np.ndarray
    grey: bool
    settings: dict[str, Any]
    losses: np.ndarray

    @property
    def part(self) -> Part:
        """Inputs of the nets, (count, 1, 16, 16) float32, and labels.

        >>> drawn = Drawn(np.zeros((1, 16, 16), np.uint8), np.array([7], np.uint8), True, {}, np.empty((0, 2)))
        >>> drawn.part[0].shape, drawn.part[1]
        ((1, 1, 16, 16), array([7]))
        """
        plain = (self.levels / 127.5 - 1).astype(np.float32)
        x = from_grey_levels(self.levels) if self.grey else plain
        return x[:, np.newaxis], self.labels.astype(np.int64)


def draw(settings: GAN1 | GAN2, levels: np.ndarray, labels: np.ndarray, checkpoint: Path | None = None) -> Drawn:
    """Trains a GAN on images of grey levels (count, 16, 16) and draws images with random labels from it.

    The same settings and images give the same result, on one machine and with one version of torch, also if training
    was interrupted and goes on from its checkpoint.
    """
    torch = _torch()
    if levels.shape[1:] != (SIDE, SIDE) or len(levels) < settings.batch_size:
        raise ArgumentError(
            f"draw: expected at least {settings.batch_size} images of {SIDE}×{SIDE} pixels, a batch, got the shape "
            f"{levels.shape}"
        )
    with _reproducible(torch, settings.seed):
        if isinstance(settings, GAN1):
            found, wanted, losses = _linear_gan(torch, settings, levels, labels, checkpoint)
        else:
            found, wanted, losses = _convolutional_gan(torch, settings, levels, labels, checkpoint)
    grey = not (isinstance(settings, GAN1) and settings.output == "tanh")
    return Drawn(found, wanted.astype(np.uint8), grey, describe(settings), losses)


def describe(settings: GAN1 | GAN2) -> dict[str, Any]:
    """The settings as JSON-able data.

    >>> describe(GAN2())["kind"]
    'GAN2'
    """
    return {"kind": type(settings).__name__, **asdict(settings)}


# --------------------------------------------------------------------------------------------------------------- files
def save(path: Path, drawn: Drawn) -> None:
    """Keep drawn images in a compressed file, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial.npz")
    np.savez_compressed(
        partial,
        levels=drawn.levels,
        labels=drawn.labels,
        grey=drawn.grey,
        losses=drawn.losses,
        settings=json.dumps(drawn.settings),
    )
    partial.replace(path)


def load(path: Path) -> Drawn:
    """What ``save`` has written."""
    try:
        with np.load(path, allow_pickle=False) as file:
            settings = json.loads(str(file["settings"]))
            return Drawn(file["levels"], file["labels"], bool(file["grey"]), settings, file["losses"])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise ArgumentError(
            f"{path}: expected the images of a GAN, got {error}; remove it to draw them again"
        ) from error


# ------------------------------------------------------------------------------------------------------------ training
def _linear_gan(
    torch: Any, settings: GAN1, levels: np.ndarray, labels: np.ndarray, checkpoint: Path | None
) -> tuple[np.ndarray, ...]:
    """Levels, labels and losses of GAN1."""
    from rop.reproduce import gan_nets

    dark, light = (float(v) for v in from_grey_levels(np.array([0, 255], np.uint8)))
    low, high = (-1.0, 1.0) if settings.output == "tanh" else (dark, light)
    generator, discriminator = gan_nets.LinearGenerator(low, high), gan_nets.LinearDiscriminator()
    pair = _Pair(torch, generator, discriminator, rate=1e-4, cosine=settings.epochs)
    real, digits = torch.from_numpy(from_grey_levels(levels).reshape(-1, SIDE**2)), torch.from_numpy(labels).long()

    def step(rows: Any) -> tuple[float, float]:
        count = len(rows)
        valid, fake = 0.7 + 0.3 * torch.rand(count, 1), 0.3 * torch.rand(count, 1)
        if float(torch.rand(())) < 0.01:
            valid, fake = fake, valid
        wanted = torch.randint(CLASSES, (count,))
        drawn = generator(torch.randn(count, 100), wanted)
        on_drawing = pair.update_generator(discriminator(drawn, wanted), valid)
        judged = (discriminator(real[rows], digits[rows]), discriminator(drawn.detach(), wanted))
        return pair.update_discriminator(judged, (valid, fake)), on_drawing

    def epoch() -> list[tuple[float, float]]:
        batches = torch.randperm(len(real)).split(settings.batch_size)
        return [step(rows) for rows in batches if len(rows) > 1]  # batchnorm needs two

    losses = pair.train(epoch, settings.epochs, checkpoint)
    generator.train(settings.sampling == "train")
    wanted = torch.randint(CLASSES, (settings.images,))
    with torch.no_grad():
        made = generator(torch.randn(settings.images, 100), wanted).numpy().reshape(-1, SIDE, SIDE)
    return _levels((made - low) / (high - low)), wanted.numpy(), losses


def _convolutional_gan(
    torch: Any, settings: GAN2, levels: np.ndarray, labels: np.ndarray, checkpoint: Path | None
) -> tuple[np.ndarray, ...]:
    """Levels, labels and losses of GAN2."""
    from rop.reproduce import gan_nets

    generator, discriminator = gan_nets.ConvolutionalGenerator(), gan_nets.ConvolutionalDiscriminator()
    pair = _Pair(torch, generator, discriminator, rate=2e-4)
    real = torch.from_numpy(resized(levels, 2 * SIDE)[:, np.newaxis].astype(np.float32) / 127.5 - 1)
    digits = torch.from_numpy(labels).long()
    ones, zeros = torch.ones(settings.batch_size, 1), torch.zeros(settings.batch_size, 1)

    def step(rows: Any) -> tuple[float, float]:
        wanted = digits[rows]
        drawn = generator(torch.randn(len(rows), 10), wanted)
        judged = (discriminator(real[rows], wanted), discriminator(drawn.detach(), wanted))
        on_judging = pair.update_discriminator(judged, (ones, zeros))
        return on_judging, pair.update_generator(discriminator(drawn, wanted), ones)

    def epoch() -> list[tuple[float, float]]:
        batches = torch.randperm(len(real)).split(settings.batch_size)
        return [step(rows) for rows in batches if len(rows) == settings.batch_size]  # no incomplete one

    losses = pair.train(epoch, settings.epochs, checkpoint)
    generator.eval()
    wanted, noise = torch.randint(CLASSES, (settings.images,)), torch.randn(settings.images, 10)
    pieces = zip(noise.split(500), wanted.split(500), strict=True)
    with torch.no_grad():
        made = np.concatenate([generator(z, y)[:, 0].numpy() for z, y in pieces])  # (images, 32, 32)
    bits = wrapped(made) if settings.eight_bits == "wrap" else _levels((made + 1) / 2)
    return resized(bits, SIDE), wanted.numpy(), losses


def wrapped(x: np.ndarray) -> np.ndarray:
    """255·x cut off to an integer, modulo 256: how torch converts images to 8 bits, meant for images in [0, 1].

    >>> wrapped(np.array([1.0, 0.0, -0.5, -1.0]))
    array([255,   0, 129,   1], dtype=uint8)
    """
    return (np.trunc(255.0 * x).astype(np.int64) % 256).astype(np.uint8)


def _levels(share: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1] as levels 0 to 255."""
    return np.rint(255.0 * share).clip(0, 255).astype(np.uint8)


class _Pair:
    """A generator and a discriminator with their optimizers, and how each is updated by binary cross-entropy."""

    def __init__(self, torch: Any, generator: Any, discriminator: Any, rate: float, cosine: int | None = None):
        self.torch = torch
        self.nets = [generator, discriminator]
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999), weight_decay=2e-5) for net in self.nets
        ]
        annealing = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedules = [annealing(optimizer, cosine) for optimizer in self.optimizers] if cosine else []
        self.loss: Callable[..., Any] = torch.nn.BCELoss()

    def update_generator(self, judged: Any, target: Any) -> float:
        return self._update(0, self.loss(judged, target))

    def update_discriminator(self, judged: tuple[Any, Any], targets: tuple[Any, Any]) -> float:
        """``judged`` and ``targets`` are those of real images and of drawn ones."""
        return self._update(1, (self.loss(judged[0], targets[0]) + self.loss(judged[1], targets[1])) / 2)

    def _update(self, which: int, loss: Any) -> float:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()
        return float(loss.detach())

    def train(self, epoch: Callable[[], list[tuple[float, float]]], epochs: int, checkpoint: Path | None) -> np.ndarray:
        """Runs epochs, each of which returns the losses of its steps; returns their means, (epochs, 2). The state is
        kept in the checkpoint after every epoch, and a run that finds one goes on from there."""
        means: list[list[float]] = []
        owners = [*self.nets, *self.optimizers, *self.schedules]
        if checkpoint is not None and checkpoint.exists():
            saved = self.torch.load(checkpoint, weights_only=True)
            means = saved["means"]
            self.torch.set_rng_state(saved["random"])
            for owner, state in zip(owners, saved["states"], strict=True):
                owner.load_state_dict(state)
        while len(means) < epochs:
            means.append(np.mean(epoch(), axis=0).tolist())
            for schedule in self.schedules:
                schedule.step()
            if checkpoint is not None:
                states = [owner.state_dict() for owner in owners]
                content = {"means": means, "random": self.torch.get_rng_state(), "states": states}
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                self.torch.save(content, partial := checkpoint.with_suffix(".partial"))
                partial.replace(checkpoint)
        return np.array(means)


@contextmanager
def _reproducible(torch: Any, seed: int) -> Iterator[None]:
    """Torch with a seed of its own, deterministic algorithms and one thread, so that the number of cores has no part in
    the result; all is as before afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.set_num_threads(threads)


def _check_counts(settings: GAN1 | GAN2) -> None:
    owner = type(settings).__name__
    for name in ("epochs", "batch_size", "images"):
        check_int(owner, name, getattr(settings, name))
    check_int(owner, "seed", settings.seed, minimum=0)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing_package("GAN", "torch", "reproduce", error) from error
    return torch
