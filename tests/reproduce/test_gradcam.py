"""Grad-CAM and DenseNet against torch: autograd with hooks, and the helper's DenseNet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import rop
from rop import ArgumentError
from rop.reproduce.densenet import densenet
from rop.reproduce.gradcam import enlarged, gradcam, jaccard, top
from tests.helpers.architectures import DenseNet121

rng = np.random.default_rng(0)


def hooked(module: DenseNet121, x: torch.Tensor, scores: np.ndarray) -> np.ndarray:
    """The maps at the last batchnorm by its definition: gradients of the scores that hooks catch."""
    caught: dict[str, torch.Tensor] = {}

    def keep(layer: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        caught["value"] = output
        output.register_hook(lambda gradient: caught.__setitem__("gradient", gradient))
        return output.clone()  # the ReLU after it works in place

    handle = module.norm5.register_forward_hook(keep)
    module(x)[torch.arange(len(x)), torch.tensor(scores)].sum().backward()
    handle.remove()
    weights = caught["gradient"].mean(dim=(2, 3), keepdim=True)
    return F.relu((weights * caught["value"]).sum(1)).detach().numpy()


@pytest.fixture(scope="module")
def small() -> tuple[DenseNet121, rop.Graph, np.ndarray, dict[str, np.ndarray]]:
    """torch's DenseNet-121 with growth 2 and the same as a graph."""
    torch.manual_seed(0)
    module = DenseNet121(growth=2).double().eval()
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if "norm" in name and value.dtype == torch.float64:  # nothing is at a special value such as γ = 1
                value += 0.3 * (torch.rand_like(value) - 0.5)
    net = densenet(labels=14, channels=3, growth=2)
    order = sorted_parameters(module)
    w = np.concatenate([order[slot.name].ravel() for slot in net.slots])
    state = net.init_state(np.float64)
    for name in state:
        state[name] = order[name]
    return module, net, w, state


def sorted_parameters(module: DenseNet121) -> dict[str, np.ndarray]:
    """The helper's parameters and statistics by torchvision's names."""
    found = {}
    for name, value in module.state_dict().items():
        parts = name.split(".")
        if parts[0] == "blocks":
            name = f"denseblock{int(parts[1]) + 1}.denselayer{int(parts[2]) + 1}.{'.'.join(parts[3:])}"
        elif parts[0] == "transitions":
            name = f"transition{int(parts[1]) + 1}.{ {'0': 'norm', '2': 'conv'}[parts[2]] }.{parts[3]}"
        found[name] = value.numpy()
    return found


def test_densenet_is_torchs(small: tuple):
    module, net, w, state = small
    x = rng.normal(size=(3, 3, 32, 32))
    with torch.no_grad():
        expected = module(torch.tensor(x)).numpy()
    np.testing.assert_allclose(net.predict(w, x, state), expected, rtol=1e-9, atol=1e-11)


def test_densenet_121_has_the_size_of_torchvisions():
    """7,978,856 parameters with 3 channels and 1,000 classes."""
    assert densenet(labels=1000, channels=3).size == 7_978_856
    assert densenet(labels=14, channels=1).size == 7_978_856 - 2 * 49 * 64 - 986 * 1025


def test_maps_against_hooks(small: tuple):
    module, net, w, state = small
    x, scores = rng.normal(size=(4, 3, 64, 64)), np.array([3, 0, 13, 3])
    expected = hooked(module, torch.tensor(x), scores)
    found = gradcam(net, w, x, scores, state=state)
    assert found.shape == (4, 2, 2) and (expected > 0).any() and (expected == 0).any()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


def test_after_the_relu_the_gradient_is_that_of_the_mean(small: tuple):
    module, net, w, state = small
    x, scores = rng.normal(size=(2, 3, 64, 64)), np.array([1, 2])
    a = gradcam_of_relu(module, torch.tensor(x), scores)
    np.testing.assert_allclose(gradcam(net, w, x, scores, "relu5", state), a, rtol=1e-9, atol=1e-13)


def gradcam_of_relu(module: DenseNet121, x: torch.Tensor, scores: np.ndarray) -> np.ndarray:
    values = []
    handle = module.norm5.register_forward_hook(lambda layer, inputs, output: values.append(F.relu(output)))
    module(x)
    handle.remove()
    a = values[0].detach().requires_grad_()
    module.classifier(a.mean(dim=(2, 3)))[torch.arange(len(x)), torch.tensor(scores)].sum().backward()
    assert a.grad is not None
    return F.relu((a.grad.mean(dim=(2, 3), keepdim=True) * a).sum(1)).detach().numpy()


def test_enlarged_maps_against_torch():
    maps = rng.normal(size=(3, 2, 5))
    expected = F.interpolate(torch.tensor(maps)[None], (64, 64), mode="bilinear", align_corners=False)[0]
    np.testing.assert_allclose(enlarged(maps, 64), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_the_top_tenth_and_its_overlap():
    maps = rng.normal(size=(2, 20, 20))
    mask = top(maps)
    assert mask.sum(axis=(1, 2)).tolist() == [40, 40]
    np.testing.assert_array_equal(mask[0].ravel().nonzero()[0], np.sort(np.argsort(maps[0].ravel())[-40:]))
    sets = [set(np.flatnonzero(one)) for one in mask]
    assert jaccard(mask[:1], mask[1:])[0] == len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    assert jaccard(mask, mask).tolist() == [1.0, 1.0]
    constant = top(np.zeros((1, 4, 4)))
    assert not constant.any() and np.isnan(jaccard(constant, constant)[0])


def test_refusals(small: tuple):
    _, net, w, state = small
    x, scores = np.zeros((1, 3, 64, 64)), np.array([0])
    with pytest.raises(ArgumentError, match=r"after the layer 'norm0' expected .* closed form; got ReLU"):
        gradcam(net, w, x, scores, "norm0", state)
    with pytest.raises(ArgumentError, match=r"name of a layer of the net, got 'norm6'"):
        gradcam(net, w, x, scores, "norm6", state)
    with pytest.raises(ArgumentError, match=r"scores must be in \[0, 13\], got 14 … 14"):
        gradcam(net, w, x, np.array([14]), state=state)
    with pytest.raises(ArgumentError, match=r"the number of an output for each of the 1 images"):
        gradcam(net, w, x, np.array([0.5]), state=state)
