"""The GANs in miniature: shapes, ranges, seeds, slips, files, and going on from a checkpoint to the same bits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from rop import ArgumentError
from rop.experiments.data.usps import from_grey_levels
from rop.reproduce import gan
from rop.reproduce.gan import GAN1, GAN2

SMALL1 = {"epochs": 2, "batch_size": 16, "images": 30}
SMALL2 = {"epochs": 1, "batch_size": 4, "images": 6}


def digits(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Images with a bright bar whose place is the label."""
    labels = np.arange(count) % 10
    x = np.zeros((count, 16, 16), np.uint8)
    x[np.arange(count), labels] = 255
    return x, labels


@pytest.mark.parametrize("settings", [GAN1(**SMALL1), GAN2(**SMALL2)])  # type: ignore[arg-type]
def test_drawn_images(settings: GAN1 | GAN2, tmp_path: Path):
    before = torch.get_rng_state()
    drawn = gan.draw(settings, *digits())
    assert torch.equal(before, torch.get_rng_state())  # the caller's random numbers go on as if nothing had been drawn
    assert (drawn.levels.shape, drawn.levels.dtype.name) == ((settings.images, 16, 16), "uint8")
    assert drawn.losses.shape == (settings.epochs, 2) and np.isfinite(drawn.losses).all()
    assert set(drawn.labels) <= set(range(10)) and len(set(drawn.labels)) > 2
    x, y = drawn.part
    assert (x.shape, x.dtype.name, y.dtype.name) == ((settings.images, 1, 16, 16), "float32", "int64")
    gan.save(tmp_path / "gans" / "one.npz", drawn)
    again = gan.load(tmp_path / "gans" / "one.npz")
    np.testing.assert_array_equal(again.part[0], x)
    assert again.settings == gan.describe(settings) and again.grey == drawn.grey
    assert list((tmp_path / "gans").iterdir()) == [tmp_path / "gans" / "one.npz"]


@pytest.mark.parametrize("settings", [GAN1(**SMALL1), GAN2(**(SMALL2 | {"epochs": 2}))])  # type: ignore[arg-type]
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(
    settings: GAN1 | GAN2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = gan.draw(settings, *digits(20))
    saved, save = [], torch.save

    def interrupted(content: dict, path: Path) -> None:
        save(content, path)
        saved.append(path)
        if len(saved) == 2:  # the state after the first epoch is in place, that of the second is not
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gan.draw(settings, *digits(20), checkpoint=tmp_path / "state.pt")
    monkeypatch.undo()
    again = gan.draw(settings, *digits(20), checkpoint=tmp_path / "state.pt")
    np.testing.assert_array_equal(again.levels, whole.levels)
    np.testing.assert_array_equal(again.losses, whole.losses)


def test_the_seed_decides():
    one, same, other = (gan.draw(GAN1(**SMALL1, seed=seed), *digits()).levels for seed in (1, 1, 2))  # type: ignore[arg-type]
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_the_slip_of_gan1():
    """With tanh alone no pixel is brighter than 1, where white is 2.53; scaled, the range is that of the pixels."""
    slip = gan.draw(GAN1(**SMALL1), *digits())  # type: ignore[arg-type]
    right = gan.draw(GAN1(**SMALL1, output="scaled", sampling="evaluation"), *digits())
    dark, light = from_grey_levels(np.array([0, 255], np.uint8))
    assert not slip.grey and np.abs(slip.part[0]).max() <= 1 < light
    assert right.grey and dark <= right.part[0].min() and right.part[0].max() <= light


def test_in_evaluation_mode_images_do_not_depend_on_each_other():
    """Noise is drawn after the labels, so that the first images of a longer series have other noise; the same number of
    images with the same seed is the same in both modes but for batchnorm."""
    modes = [gan.draw(GAN1(**SMALL1, sampling=mode), *digits()) for mode in ("train", "evaluation")]  # type: ignore[arg-type]
    np.testing.assert_array_equal(modes[0].labels, modes[1].labels)
    np.testing.assert_array_equal(modes[0].losses, modes[1].losses)
    assert (modes[0].levels != modes[1].levels).any()


def test_the_slip_of_gan2_is_torchs_conversion():
    x = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    np.testing.assert_array_equal(gan.wrapped(x.numpy()), x.mul(255).to(torch.int64).to(torch.uint8).numpy())


def test_the_nets_have_the_published_sizes(monkeypatch: pytest.MonkeyPatch):
    """Counts of parameters, layer by layer from the published widths."""
    made: list[int] = []
    start = gan._Pair.__init__

    def counted(self: gan._Pair, torch: object, *nets: torch.nn.Module, **options: object) -> None:
        made.extend(sum(p.numel() for p in net.parameters()) for net in nets)
        start(self, torch, *nets, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(gan._Pair, "__init__", counted)
    gan.draw(GAN1(**SMALL1), *digits())  # type: ignore[arg-type]
    gan.draw(GAN2(**SMALL2), *digits(4))  # type: ignore[arg-type]
    widths = (110, 32, 64, 128, 256, 256)
    linear = sum((i + 1) * o for i, o in pairwise(widths))
    assert made[0] == 100 + linear + 2 * (64 + 128 + 256)
    assert made[1] == 100 + 267 * 128 + 2 * 129 * 128 + 129
    assert made[2] == 50 + 16 * (15 * 256 + 256 * 128 + 128 * 64 + 64) + 1 + 2 * (256 + 128 + 64)
    assert made[3] == 10 * 1024 + 16 * (2 * 64 + 64 * 128 + 128 * 256 + 256) + 64 + 1 + 2 * (128 + 256)


def test_refusals(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"GAN1: output must be one of 'tanh', 'scaled'"):
        GAN1(output="linear")
    with pytest.raises(ArgumentError, match="at least 64 images of 16×16"):
        gan.draw(GAN1(epochs=1), *digits(8))
    (tmp_path / "x.npz").write_bytes(b"no")
    with pytest.raises(ArgumentError, match=r"x.npz: expected the images of a GAN"):
        gan.load(tmp_path / "x.npz")
