"""A PyTorch net on handwritten digits, trained with plain SGD and with the spectral radius as a penalty.

    pip install '.[torch,train]'
    python examples/torch_training.py --epochs 20 --mu 0.02

Both start from the same parameters and see the same batches. ρ is the spectral radius of the Hessian of the loss on the
whole training set; the time is that of the training alone, the first step's compilation included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rop

Step = Callable[[Tensor, Tensor], float]
HEADER = f"{'trained with':16}{'epoch':>6}{'loss':>10}{'accuracy, %':>13}{'rho':>10}{'seconds':>10}"


class Net(nn.Module):
    """Two convolutions, a residual connection and two linear layers, on 8×8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.hidden, self.output = nn.Linear(8 * 4 * 4, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x) + x)
        return self.output(F.relu(self.hidden(torch.flatten(x, 1))))


def plain(module: nn.Module, base: torch.optim.Optimizer) -> Step:
    """The usual training step."""

    def step(x: Tensor, y: Tensor) -> float:
        base.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        base.step()
        return loss.item()

    return step


def rho(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Spectral radius of the Hessian in evaluation mode, on all of the data."""
    net, w, state = rop.from_torch(module)
    f = rop.Objective(net, rop.CrossEntropy(), x.numpy(), y.numpy(), training=False, state=state)
    return rop.spectral_radius(f.at(w), method="lanczos", tol=1e-2).rho


def train(name: str, module: nn.Module, step: Step, options: argparse.Namespace) -> None:
    """All epochs, with a line every so often."""
    digits = rop.datasets.load("digits")
    x, y = map(torch.from_numpy, digits.train)
    test_x, test_y = map(torch.from_numpy, digits.test)
    shuffle, seconds = torch.Generator().manual_seed(options.seed), 0.0
    for epoch in range(1, options.epochs + 1):
        start, losses = time.perf_counter(), []
        module.train()
        for batch in torch.randperm(len(x), generator=shuffle).split(options.batch_size)[:-1]:
            losses.append(step(x[batch], y[batch]))
        seconds += time.perf_counter() - start
        if epoch % options.every == 0 or epoch == options.epochs:
            module.eval()
            with torch.no_grad():
                accuracy = 100 * (module(test_x).argmax(1) == test_y).double().mean().item()
            mean = sum(losses) / len(losses)
            print(f"{name:16}{epoch:6}{mean:10.4f}{accuracy:13.2f}{rho(module, x, y):10.3f}{seconds:10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="epochs from line to line (default 10)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--mu", type=float, default=0.02, help="weight of the penalty")
    parser.add_argument("--K", type=float, default=0.0, help="the spectral radius that is free")
    parser.add_argument("--solver", default="track", help="track, power, lanczos, lobpcg (default track)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of so small a net only wait for each other
    print(HEADER)
    for name in ("SGD", "SpectralRadius"):
        torch.manual_seed(options.seed)
        module = Net()
        base = torch.optim.SGD(module.parameters(), lr=options.lr, momentum=0.9)
        step = plain(module, base)
        if name == "SpectralRadius":
            step = rop.torch.SpectralRadius(
                module,
                nn.CrossEntropyLoss(),
                base,
                mu=options.mu,
                K=options.K,
                solver=options.solver,
                seed=options.seed,
            ).step
        train(name, module, step, options)


if __name__ == "__main__":
    main()
