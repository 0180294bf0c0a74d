"""`rop bench --torch-module`: a module of the user's as a problem, every engine giving the numbers of the module."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rop import cli
from rop.bench import comparison, engines, flops, modules, problems, processes, runner
from rop.bench.engines.cuda_engines import TorchCuda
from rop.bench.settings import Settings
from rop.commands.bench import bench_settings
from tests.bench.test_bench import answers, expected_of

FILE = """
import torch
from torch import nn

from beside import WIDTH

class Net(nn.Module):
    def __init__(self, dropout=0.5):
        super().__init__()
        self.out = nn.Linear(WIDTH, 4)      # made first, used last
        self.first, self.bn, self.drop = nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout)
        self.twice = nn.Linear(WIDTH, WIDTH)
    def forward(self, x):
        h = self.drop(torch.tanh(self.bn(self.first(x))))
        return self.out(h + self.twice(torch.relu(self.twice(h))))

def trains(): return Net(dropout=0.0), torch.randn(9, 6), torch.randint(4, (9,))
def evaluates():
    net = Net()
    net.bn.running_var.uniform_(0.5, 2)
    net.bn.running_mean.normal_()
    return net.eval(), torch.randn(9, 6), torch.rand(9, 4), nn.BCEWithLogitsLoss()
def images():
    first = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.SiLU(), nn.AvgPool2d(2)
    net = nn.Sequential(*first, nn.Flatten(), nn.Linear(12, 3))
    return net.double(), torch.randn(5, 1, 6, 6), torch.randint(3, (5,)), nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]))
def alone(): return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
def numbers(): return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(4, 3), torch.randn(4, 2)
def squares(): return nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2)

def dropping(): return Net()
def lstm(): return nn.LSTM(3, 3), torch.randn(4, 3)
def conv(): return nn.Conv2d(1, 2, 3)
def one_number(): return nn.Linear(3, 1)
def does_not_fit(): return nn.Linear(3, 2), torch.randn(4, 7)
def changes():
    import numpy
    return nn.Linear(2, 2), torch.from_numpy(numpy.random.default_rng().standard_normal((4, 2)))
def nothing(): pass
def breaks(): raise KeyError("weights.pt")
def few_targets(): return nn.Linear(2, 2), torch.zeros(4, 2), torch.zeros(3, dtype=torch.long)
def strange_loss(): return nn.Linear(2, 2), torch.zeros(4, 2), torch.zeros(4, 2), nn.MultiMarginLoss()
def words(): return nn.Linear(2, 2), torch.zeros(4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nets")
    (place / "nets.py").write_text(FILE)
    (place / "beside.py").write_text("WIDTH = 7\n")
    (place / "broken.py").write_text("import torch\ndef f(:\n")
    return place


@pytest.mark.parametrize("function", ["trains", "evaluates", "images", "alone", "numbers", "squares"])
def test_engines_agree(folder: Path, function: str) -> None:
    """At every work and in every way, also where parameters are not used in the order in which they are made."""
    (problem,) = problems.find(f"{folder}/nets.py:{function}")
    reference = answers("torch", problem, 8)
    forward_mode = () if function in ("numbers", "squares") else ("torch.func",)  # torch: no jvp of mse_loss's gradient
    for engine in ("torch", "rop", *forward_mode):
        for work, ways in answers(engine, problem, 8).items():
            for way, answer in ways.items():
                comparison.compare(answer, expected_of(reference, work), "float64", f"{engine} ({way})")


@pytest.mark.parametrize("function", ["trains", "evaluates", "images"])
def test_the_loss_is_that_of_the_module(folder: Path, function: str) -> None:
    """Called as its author would call it, at both points."""
    problem = modules.load(f"{folder}/nets.py:{function}")
    data = problem.data(len(problem.x), "float64")
    module = problem.module.double()
    before = parameters_to_vector(module.parameters()).detach().numpy().copy()
    np.testing.assert_array_equal(data.points[0], before)
    loss = problem.torch_loss.double()
    for point in (0, 1):
        vector_to_parameters(torch.from_numpy(data.points[point]), module.parameters())
        expected = loss(module(torch.from_numpy(data.x)), torch.from_numpy(data.y)).item()
        moved = data._replace(points=(data.points[point],) * 2)
        for name in ("rop", "torch"):
            engine = modules_engine(name, problem, moved)
            assert engine.quantities("grad", engine.run("grad", 0))["loss"] == pytest.approx(expected, rel=1e-12)


def modules_engine(name: str, problem: Any, data: Any) -> Any:
    engine = engines.make(name, 1)
    engine.prepare(problem, len(data.x), "float64", data)
    return engine


@pytest.mark.parametrize("function", ["trains", "evaluates", "images"])
def test_all_of_a_module_is_on_the_gpu(folder: Path, function: str) -> None:
    """Parameters, running statistics and the loss's weights, on a device that refuses tensors of any other."""
    problem = modules.load(f"{folder}/nets.py:{function}")
    engine = TorchElsewhere(1)
    engine.prepare(problem, 4, "float32", problem.data(4, "float32"))
    for work, ways in engine.ways.items():
        for way in ways:
            quantities = engine.quantities(work, getattr(engine, way)(0))
            assert set(quantities.values()) == {"meta"}, (way, quantities)


class TorchElsewhere(TorchCuda):
    """The engine of the GPU on torch's device without numbers; its results say where they are."""

    device = "meta"

    def flat(self, quantity: Any) -> Any:
        parts = quantity if isinstance(quantity, (list, tuple)) else [quantity]
        (device,) = {part.device.type for part in parts}
        return device


def test_batches_repeat_the_rows_that_are_there(folder: Path) -> None:
    problem = modules.load(f"{folder}/nets.py:trains")
    data = problem.data(20, "float32")
    assert data.x.dtype == np.float32 and data.y.dtype == np.int64
    np.testing.assert_array_equal(data.x[9:18], data.x[:9])
    np.testing.assert_array_equal(data.y[9:18], data.y[:9])
    assert not np.array_equal(*data.points) and not np.array_equal(*data.directions)


def test_operations_of_a_graph_with_a_layer_used_twice(folder: Path) -> None:
    counts = flops.count(modules.load(f"{folder}/nets.py:trains"))
    assert [c.multiplications for c in counts] == [6 * 7, 7 * 7, 7 * 7, 7 * 4]
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 7], [3, 6, 7], [3, 6, 7]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nets.py:dropping", r"drop \(Dropout; nets.py:\d+, .*\): dropout with p=0.5 .*call module.eval\(\)"),
        ("nets.py:lstm", "LSTM: torch.fx cannot trace its forward"),
        ("nets.py:conv", r"expected it to return \(module, x\)"),
        ("nets.py:one_number", "expected it to return y and a loss"),
        ("nets.py:does_not_fit", r"expected input \(batch, 3\), got \(batch, 7\)"),
        ("nets.py:changes", "seed its random numbers"),
        ("nets.py:nothing", r"expected it to return a module, .* got \(NoneType\)"),
        ("nets.py:breaks", "KeyError while it was called: 'weights.pt'"),
        ("nets.py:few_targets", "got 4 samples and 3 targets"),
        ("nets.py:strange_loss", "expected one of torch's BCEWithLogitsLoss, .*MultiMarginLoss"),
        ("nets.py:words", r"expected x as a tensor \(batch, ...\) of numbers, got shape \(4,\)"),
        ("nets.py:absent", "has no function absent; it has Net, trains, evaluates"),
        ("broken.py:f", "broken.py: SyntaxError while it was imported"),
        ("absent.py:f", "there is no file .*absent.py; expected path/to/file.py:function"),
        ("nets.py", "expected path/to/file.py:function"),
    ],
)
def test_what_cannot_be_measured(folder: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--torch-module", f"{folder}/{name}"]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.startswith("rop bench: ") and len(said.splitlines()) <= 2


def test_options_beside_a_module(folder: Path) -> None:
    """The command of docs/benchmark-your-net.md, and the other options that change the settings."""
    command = f"bench --torch-module {folder}/nets.py:trains --quick --engines rop torch"
    chosen = bench_settings(cli.parser().parse_args(command.split()))
    assert [type(problem) for problem in chosen.problems] == [modules.ModuleProblem]
    assert (chosen.engines, chosen.batches, chosen.dtypes, chosen.rounds) == (("rop", "torch"), (9,), ("float32",), 5)
    more = bench_settings(cli.parser().parse_args([*command.split(), "--threads", "1", "--device", "cuda"]))
    assert (more.threads, more.device) == (1, "cuda")


def test_the_process_that_is_measured_never_computes_the_reference(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise torch's peak memory would be that of the reference in float64, several times its own."""
    started: list[tuple[processes.Client, list[dict[str, Any]]]] = []

    class Watched(processes.Client):
        def __init__(self, engine: str, *arguments: Any) -> None:
            others = [other.engine for other, _ in started if other.process.poll() is None]
            assert engine == "gemm" or others == ["gemm"], "the process of the reference is still alive"
            super().__init__(engine, *arguments)
            self.commands: list[dict[str, Any]] = []
            started.append((self, self.commands))

        def send(self, do: str, **command: Any) -> None:
            self.commands.append({"do": do, **command})
            super().send(do, **command)

    monkeypatch.setattr(runner, "Client", Watched)
    problem = modules.load(f"{folder}/nets.py:trains")
    works = ("grad", "hvp_block", "jet")
    chosen = Settings((problem,), (9,), ("float32",), ("torch",), works, rounds=1, burst=0.002)
    result = runner.Run(chosen).run()
    assert [row["status"] for row in result["rows"]] == ["ok"] * 3, result["failures"]
    (gemm, _), (referee, asked), (measured, done) = started
    assert [client.engine for client in (gemm, referee, measured)] == ["gemm", "torch", "torch"]
    assert [command["dtype"] for command in asked if command["do"] == "prepare"] == ["float64"]
    assert [command["dtype"] for command in done if command["do"] == "prepare"] == ["float32"]
    computed = [(command["do"], command.get("work"), command.get("all_ways")) for command in asked[1:]]
    assert computed == [
        ("forget", None, None),
        ("answer", "jet", False),
        ("forget", None, None),
        ("answer", "hvp_block", False),
    ]
    assert [command["work"] for command in done if command["do"] == "answer"] == list(works)


@pytest.mark.thorough
def test_from_the_shell(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    command = f"bench --torch-module {folder}/nets.py:trains --works jet --dtype float64 --rounds 1 --json {file}"
    assert cli.main([*command.split(), "--engines", "rop", "torch", "jax"]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["status"], row["batch"], sorted(row["engines"])) == ("ok", 9, ["rop", "torch"])
    shown = capsys.readouterr()
    assert "nets.py:trains" in shown.out
    assert "jax was left out" in shown.err + shown.out  # it has no such modules, and may not be installed
    assert "peak memory of rop below" not in shown.out, "its process has torch in it"
