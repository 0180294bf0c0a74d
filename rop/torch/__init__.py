"""PyTorch: modules in and out, and training steps with the spectral-radius penalty.

>>> import torch, rop
>>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
>>> net, w, state = rop.from_torch(module)
>>> net.size, bool((w == torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()).all())
(67, True)

The same functions are at hand as ``rop.from_torch`` and ``rop.to_torch``; they load torch when they are first called.
"""

from rop.errors import missing_package

try:
    import torch as _torch  # noqa: F401  absolute: the real one, not this package
except ImportError as error:
    raise missing_package("rop.torch", "PyTorch", "torch", error) from error

from rop.torch.export import to_torch
from rop.torch.losses import loss_from_torch
from rop.torch.optimizer import SpectralRadius
from rop.torch.trace import from_torch

__all__ = ["SpectralRadius", "from_torch", "loss_from_torch", "to_torch"]
