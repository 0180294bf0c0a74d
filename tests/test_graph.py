"""Nets without computing anything: names, the flat vector, shapes, tables, and what constructors refuse."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

from rop import layers
from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.graph import Graph, Input, Node, Sequential
from rop.layers import (
    GELU,
    LAYERS,
    LOSSES,
    MSE,
    NLL,
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BCEWithLogits,
    Concat,
    Conv2d,
    CrossEntropy,
    Elementwise,
    Flatten,
    Identity,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    Softmax,
    Softplus,
    Tanh,
)


def names(net: Graph) -> list[str]:
    return [slot.name for slot in net.slots]


def _undefined(x: float) -> Any:
    return x, x, x, missing  # type: ignore[name-defined]  # noqa: F821


def usps_net() -> Sequential:
    return Sequential(
        Conv2d(1, 8, 3, padding=1), ReLU(), MaxPool2d(2), BatchNorm2d(8), Flatten(), Linear(512, 10, bias=False)
    )


# ---- names and the flat vector ---------------------------------------------------------------------------------------


def test_sequential_is_named_and_laid_out_as_in_torch() -> None:
    net = usps_net()
    assert [(slot.name, slot.shape, slot.offset, slot.size) for slot in net.slots] == [
        ("0.weight", (8, 1, 3, 3), 0, 72),
        ("0.bias", (8,), 72, 8),
        ("3.weight", (8,), 80, 8),
        ("3.bias", (8,), 88, 8),
        ("5.weight", (10, 512), 96, 5120),
    ]
    assert net.size == 96 + 5120
    assert net.offset(net.layers[3], "bias") == 88
    assert net.name_of(net.layers[5]) == "5"
    assert net.where(net.nodes[1]) == "layer 0 (Conv2d 1→8)"
    assert net.where(net.nodes[3]) == "layer 2 (MaxPool2d 2×2)"


def test_name_of_a_stranger_is_refused() -> None:
    with pytest.raises(ArgumentError, match="not a layer of this net"):
        Sequential(Linear(2, 2)).name_of(Linear(2, 2))


def test_nested_sequential_has_dotted_names() -> None:
    net = Sequential(Sequential(ReLU(), Linear(2, 3)), Sequential(Sequential(Linear(3, 3), Tanh())), Linear(3, 1))
    assert names(net) == ["0.1.weight", "0.1.bias", "1.0.0.weight", "1.0.0.bias", "2.weight", "2.bias"]
    assert net.where(net.nodes[2]) == "layer 0.1 (Linear 2→3)"
    assert len(net.nodes) == 6


def test_a_graph_in_a_sequential_keeps_its_own_names_behind_the_index() -> None:
    x = Input()
    block = Graph(x, Add()(x, Tanh()(Linear(3, 3)(x))))
    net = Sequential(Linear(2, 3), block, Linear(3, 1))
    assert names(net) == ["0.weight", "0.bias", "1.0.weight", "1.0.bias", "2.weight", "2.bias"]
    assert net.where(net.nodes[4]) == "layer 1.2 (Add)"


def test_graph_order_is_the_order_of_first_call() -> None:
    first, second, unused = Linear(4, 4), Linear(4, 4, bias=False), Linear(4, 4)
    x = Input()
    b = second(x)  # called first although made later
    a = first(x)
    unused(x)
    net = Graph(x, Add()(a, b))
    assert net.layers == (second, first, net.nodes[-1].layer)
    assert names(net) == ["0.weight", "1.weight", "1.bias"]
    assert net.offset(first, "weight") == 16
    assert [node.layer for node in net.nodes] == [None, second, first, net.layers[2]]
    assert net.input is x and net.output is net.nodes[-1]


def test_a_tied_layer_stands_once_under_its_first_name() -> None:
    tied, relu = Linear(3, 3), ReLU()
    net = Sequential(tied, relu, tied, relu, Linear(3, 2))
    assert names(net) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert net.size == 12 + 8
    assert net.layers[:2] == (tied, relu) and len(net.nodes) == 6
    assert net.where(net.nodes[1]) == "layer 0 (Linear 3→3)"
    assert net.where(net.nodes[3]) == "layer 0 (Linear 3→3, use 2)"


def test_a_tied_block_stands_once() -> None:
    block = Sequential(Linear(3, 3), Tanh())
    net = Sequential(block, block)
    assert names(net) == ["0.0.weight", "0.0.bias"]
    assert len(net.nodes) == 5


def test_equal_layers_are_not_tied() -> None:
    assert Sequential(Linear(3, 3), Linear(3, 3)).size == 24


def test_calling_a_net_rebuilds_its_branches() -> None:
    x = Input()
    residual = Graph(x, Add()(x, Linear(3, 3)(x)))
    z = Input()
    net = Graph(z, residual(residual(z)))
    assert len(net.layers) == 2 and len(net.nodes) == 5 and net.size == 12
    first_add, second_linear = net.nodes[2], net.nodes[3]
    assert second_linear.inputs == (first_add,)
    assert first_add.inputs == (z, net.nodes[1])
    assert residual.nodes[0] is x  # the original is untouched


def test_deep_nets_need_no_recursion() -> None:
    net = Sequential(*(Identity() for _ in range(3000)))
    assert net.shapes((2,))[net.output] == (2,)


# ---- parameters ------------------------------------------------------------------------------------------------------


def test_params_are_views_that_write_through() -> None:
    net = usps_net()
    w = np.arange(net.size, dtype=np.float64)
    views = net.params(w)
    assert list(views) == names(net)
    assert views["0.weight"][7, 0, 2, 2] == 71 and views["5.weight"][0, 1] == 97
    views["3.bias"][:] = -1
    assert (w[88:96] == -1).all() and w[96] == 96
    every_second = np.arange(2.0 * net.size)[::2]
    assert np.shares_memory(net.params(every_second)["0.weight"], every_second)


@pytest.mark.parametrize(
    ("w", "error", "message"),
    [
        (np.zeros(11), ArgumentError, r"expected shape \(12,\).*got \(11,\)"),
        (np.zeros((12, 1)), ArgumentError, r"got \(12, 1\)"),
        (np.zeros(12, int), ArgumentTypeError, "array of int"),
        (np.zeros(12, complex), ArgumentTypeError, "complex"),
        (np.zeros(12, object), ArgumentTypeError, "object"),
        ([0.0] * 12, ArgumentTypeError, "got list"),
    ],
)
def test_params_refuses(w: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sequential(Linear(3, 3)).params(w)  # type: ignore[arg-type]


def test_init_is_reproducible_and_equal_in_both_dtypes() -> None:
    net = usps_net()
    w = net.init(seed=3)
    assert w.dtype == np.float32 and w.shape == (net.size,)
    assert np.array_equal(w, net.init(seed=3)) and not np.array_equal(w, net.init(seed=4))
    wide = net.init(seed=3, dtype=np.float64)
    assert wide.dtype == np.float64 and np.array_equal(wide.astype(np.float32), w)
    assert np.array_equal(net.init(), net.init(seed=0))


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(Linear(400, 300), 400), (Conv2d(8, 600, (3, 5), groups=2), 4 * 15)],
    ids=["Linear", "Conv2d"],
)
def test_init_has_torchs_uniform_distribution(layer: layers.Layer, fan_in: int) -> None:
    net = Sequential(layer)
    bound = fan_in**-0.5
    for values in net.params(net.init(seed=1, dtype=np.float64)).values():
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.97 * bound
        assert abs(values.mean()) < 5 * bound / np.sqrt(3 * values.size)
        assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.1)


def test_batchnorm_starts_as_the_identity() -> None:
    net = Sequential(Linear(2, 3), BatchNorm1d(3), BatchNorm1d(3, affine=False))
    views = net.params(net.init())
    assert views["1.weight"].tolist() == [1, 1, 1] and views["1.bias"].tolist() == [0, 0, 0]
    assert "2.weight" not in views
    state = net.init_state()
    assert list(state) == ["1.running_mean", "1.running_var", "2.running_mean", "2.running_var"]
    assert state["1.running_mean"].tolist() == [0, 0, 0] and state["2.running_var"].tolist() == [1, 1, 1]
    assert state["1.running_var"].dtype == np.float32
    assert net.init_state(np.float64)["1.running_var"].dtype == np.float64
    assert Sequential(Linear(2, 3)).init_state() == {}


@pytest.mark.parametrize("dtype", [np.float16, int, "text", None, complex])
def test_init_refuses_other_dtypes(dtype: object) -> None:
    net = Sequential(BatchNorm1d(3))
    with pytest.raises(ArgumentTypeError, match="dtype must be float32 or float64"):
        net.init(dtype=dtype)
    with pytest.raises(ArgumentTypeError, match="dtype must be float32 or float64"):
        net.init_state(dtype=dtype)


@pytest.mark.parametrize("seed", [-1, 1.5, "zero"])
def test_init_refuses_other_seeds(seed: object) -> None:
    with pytest.raises(ArgumentError, match="seed"):
        Sequential(Linear(2, 2)).init(seed=seed)


# ---- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Linear(5, 3), (5,), (3,)),
        (Conv2d(2, 4, 3), (2, 7, 9), (4, 5, 7)),
        (Conv2d(2, 4, (3, 5), stride=(2, 3), padding=(1, 0), dilation=(2, 1)), (2, 9, 11), (4, 4, 3)),
        (Conv2d(4, 4, 3, padding="same", dilation=2, groups=2), (4, 6, 5), (4, 6, 5)),
        (Conv2d(1, 1, 3, padding="valid"), (1, 3, 3), (1, 1, 1)),
        (MaxPool2d(2), (3, 5, 4), (3, 2, 2)),
        (MaxPool2d(3, stride=2, padding=1), (3, 5, 4), (3, 3, 2)),
        (AvgPool2d((2, 3), stride=1), (3, 5, 4), (3, 4, 2)),
        (MaxPool2d(2, ceil_mode=True), (3, 5, 4), (3, 3, 2)),
        (MaxPool2d(1, 3, ceil_mode=True), (3, 5, 4), (3, 2, 2)),
        (AvgPool2d(2, 2, 1, ceil_mode=True), (3, 5, 2), (3, 3, 2)),
        (AvgPool2d(3, 5, ceil_mode=True), (3, 9, 8), (3, 2, 2)),
        (AdaptiveAvgPool2d((7, 2)), (3, 3, 9), (3, 7, 2)),
        (AdaptiveAvgPool2d((1, 1)), (3, 5, 4), (3, 1, 1)),
        (Flatten(), (3, 5, 4), (60,)),
        (Flatten(), (3,), (3,)),
        (Identity(), (3, 5, 4), (3, 5, 4)),
        (LeakyReLU(), (3, 5), (3, 5)),
        (GELU("tanh"), (3, 5, 4), (3, 5, 4)),
        (Softmax(), (3, 5, 4), (3, 5, 4)),
        (Softmax(-1), (3,), (3,)),
        (LogSoftmax(1), (3,), (3,)),
        (BatchNorm1d(3), (3,), (3,)),
        (BatchNorm2d(3), (3, 5, 4), (3, 5, 4)),
    ],
    ids=repr,
)
def test_output_shape(layer: layers.Layer, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    net = Sequential(layer)
    assert net.shapes(shape) == {net.input: shape, net.output: expected}


def test_shapes_of_branches() -> None:
    x = Input()
    a, b = Conv2d(1, 2, 1)(x), Conv2d(1, 3, 1)(x)
    joined = Concat()(a, b, a)
    net = Graph(x, Add()(joined, joined))
    shapes = net.shapes([1, 4, 5])
    assert shapes[joined] == (7, 4, 5) == shapes[net.output]
    assert shapes[b] == (3, 4, 5)


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (
            lambda: Sequential(Conv2d(1, 3, 1), ReLU(), MaxPool2d(1), Conv2d(8, 16, 3)),
            (1, 16, 16),
            "layer 3 (Conv2d 8→16): expected input (batch, 8, H, W), got (batch, 3, 16, 16); "
            "the layer or data before it gives 3 channels",
        ),
        (lambda: Sequential(Conv2d(3, 2, 3)), (3, 16), "expected input (batch, 3, H, W), got (batch, 3, 16); images"),
        (lambda: Sequential(Conv2d(1, 2, 5)), (1, 4, 9), "layer 0 (Conv2d 1→2): expected input of at least 5×5 pixels"),
        (lambda: Sequential(Conv2d(1, 2, 3, dilation=3)), (1, 9, 6), "at least 7×7 pixels"),
        (lambda: Sequential(MaxPool2d(2)), (1, 1, 9), "layer 0 (MaxPool2d 2×2): expected input of at least 2×2"),
        (lambda: Sequential(AvgPool2d(2)), (9,), "layer 0 (AvgPool2d 2×2): expected input (batch, C, H, W)"),
        (lambda: Sequential(AdaptiveAvgPool2d(1)), (9,), "layer 0 (AdaptiveAvgPool2d 1×1): expected input"),
        (
            lambda: Sequential(Sequential(Linear(8, 2))),
            (2, 2, 2),
            "layer 0.0 (Linear 8→2): expected input (batch, 8), got (batch, 2, 2, 2); put a Flatten layer before it",
        ),
        (lambda: Sequential(Linear(8, 2)), (7,), "expected input (batch, 8), got (batch, 7); the layer or data before"),
        (lambda: Sequential(BatchNorm1d(8)), (8, 2, 2), "layer 0 (BatchNorm1d 8): expected input (batch, 8), got"),
        (lambda: Sequential(BatchNorm2d(8)), (4, 2, 2), "layer 0 (BatchNorm2d 8): expected input (batch, 8, H, W)"),
        (lambda: Sequential(Softmax(-1)), (4, 2, 2), "for images use dim=1"),
        (lambda: Sequential(LogSoftmax()), (4, 2), "put a Flatten layer before it"),
        (
            lambda: add_of_widths(3, 4),
            (2,),
            "layer 2 (Add): expected inputs of one shape, got (batch, 3) and (batch, 4)",
        ),
        (lambda: concat_of_images(), (1, 4, 4), "layer 2 (Concat): expected inputs that differ in channels only"),
    ],
)
def test_misfits_name_the_layer_and_both_shapes(build, shape, message) -> None:
    with pytest.raises(ArgumentError) as caught:
        build().shapes(shape)
    assert message in str(caught.value)


def add_of_widths(a: int, b: int) -> Graph:
    x = Input()
    return Graph(x, Add()(Linear(2, a)(x), Linear(2, b)(x)))


def concat_of_images() -> Graph:
    x = Input()
    return Graph(x, Concat()(Conv2d(1, 2, 1)(x), MaxPool2d(2)(x)))


@pytest.mark.parametrize("shape", [(), 5, (0,), (3, -1), (2.0,), "ab", None])
def test_input_shape_is_checked(shape: object) -> None:
    with pytest.raises(RopError):
        Sequential(ReLU()).shapes(shape)  # type: ignore[arg-type]


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_summary_prints_shapes_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    tied = Linear(3, 3)
    net = Sequential(Conv2d(1, 3, 2), Flatten(), tied, ReLU(), tied)
    assert net.summary((1, 2, 2)) is None  # type: ignore[func-returns-value]
    assert capsys.readouterr().out.splitlines() == [
        "name   layer       output            parameters",
        "0      Conv2d 1→3  (batch, 3, 1, 1)          15",
        "1      Flatten     (batch, 3)                 0",
        "2      Linear 3→3  (batch, 3)                12",
        "3      ReLU        (batch, 3)                 0",
        "2      Linear 3→3  (batch, 3)              tied",
        "total                                        27",
    ]


def test_summary_without_a_shape_has_no_shapes() -> None:
    text = Sequential(Linear(100, 100), ReLU()).summary_text()
    assert text.splitlines()[0].split() == ["name", "layer", "parameters"]
    assert text.splitlines()[-1].split() == ["total", "10,100"]


def test_repr_shows_the_call() -> None:
    assert repr(Linear(3, 2)) == "Linear(in_features=3, out_features=2, bias=True)"
    assert repr(ReLU()) == "ReLU()" and repr(Tanh()) == "Tanh()"
    assert repr(Sequential(Sequential(ReLU()), Flatten())) == (
        "Sequential(\n  (0.0): ReLU()\n  (1): Flatten(start_dim=1, end_dim=-1)\n)"
    )
    for layer in (
        Conv2d(2, 4, 3, padding="same", groups=2),
        AvgPool2d(2, count_include_pad=False),
        Softplus(2),
        GELU(),
    ):
        assert repr(eval(repr(layer))) == repr(layer)
    assert repr(NLL([1, 2])) == "NLL(weight=[1.0, 2.0], reduction='mean', ignore_index=-100)"


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_empty_networks_are_refused() -> None:
    x = Input()
    with pytest.raises(ArgumentError, match="empty network"):
        Sequential()
    with pytest.raises(ArgumentError, match="empty network"):
        Graph(x, x)


def test_graphs_must_start_at_their_one_input() -> None:
    x, other = Input(), Input()
    with pytest.raises(ArgumentError, match="does not depend on the given input"):
        Graph(x, ReLU()(other))
    with pytest.raises(ArgumentError, match=r"2 different rop\.Input"):
        Graph(x, Add()(x, other))
    with pytest.raises(ArgumentError, match=r"made by rop\.Input\(\), got the output of ReLU"):
        Graph(ReLU()(x), Tanh()(x))
    with pytest.raises(ArgumentTypeError, match="output must be a node, got ReLU"):
        Graph(x, ReLU())  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="input must be a node, got function"):
        Graph(Input, ReLU()(x))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (ReLU, r"argument 1 must be a layer, got the class ReLU; write ReLU\(\.\.\.\)"),
        ([ReLU()], r"write Sequential\(\*layers\)"),
        (np.tanh, "got ufunc"),
        (MSE(), "got MSE"),
        (None, "got NoneType"),
    ],
    ids=["class", "list", "function", "loss", "None"],
)
def test_sequential_refuses_what_is_not_a_layer(member: object, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        Sequential(Linear(2, 2), member)  # type: ignore[arg-type]


def test_layers_are_called_on_nodes() -> None:
    x = Input()
    for called in (Linear(2, 2), Sequential(ReLU())):
        with pytest.raises(ArgumentTypeError, match=r"got ndarray.*net\.predict"):
            called(np.zeros((1, 2)))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="ReLU: expected 1 input"):
        ReLU()(x, x)
    with pytest.raises(ArgumentError, match="Add: expected at least 2 input"):
        Add()(x)
    with pytest.raises(ArgumentError, match=r"rop\.Graph"):
        Sequential(Concat())
    assert isinstance(Add()(x, x, x), Node)


REFUSED: dict[type, list[tuple[tuple[Any, ...], str]]] = {
    Linear: [
        ((0, 1), "in_features"),
        ((3, -1), "out_features"),
        ((2.0, 1), "in_features"),
        ((True, 1), "in_features"),
        (("3", 1), "in_features"),
        ((2**40, 1), "in_features"),
        ((3, 1, 1), "bias"),
        ((3, 1, None), "bias"),
    ],
    Conv2d: [
        ((0, 1, 3), "in_channels"),
        ((1, 0, 3), "out_channels"),
        ((1, 1, 0), "kernel_size"),
        ((1, 1, (3, 0)), "kernel_size"),
        ((1, 1, (3, 3, 3)), "kernel_size"),
        ((1, 1, 3.0), "kernel_size"),
        ((1, 1, 3, 0), "stride"),
        ((1, 1, 3, 1, -1), "padding"),
        ((1, 1, 3, 1, "full"), "padding"),
        ((1, 1, 3, 2, "same"), "stride 1"),
        ((1, 1, 4, 1, "same"), "odd kernel"),
        ((1, 1, 3, 1, 0, 0), "dilation"),
        ((4, 6, 3, 1, 0, 1, 3), "groups must divide in_channels"),
        ((6, 4, 3, 1, 0, 1, 3), "groups must divide out_channels"),
        ((1, 1, 3, 1, 0, 1, 0), "groups"),
        ((1, 1, 3, 1, 0, 1, 1, "yes"), "bias"),
    ],
    MaxPool2d: [
        ((0,), "kernel_size"),
        ((2, 0), "stride"),
        ((2, 2, -1), "padding"),
        ((2, 2, 2), "half of kernel_size"),
        (((4, 2), 2, (1, 2)), "half of kernel_size"),
    ],
    AvgPool2d: [((-2,), "kernel_size"), ((2, (1, 0)), "stride"), ((3, 2, 2), "half of kernel_size")],
    AdaptiveAvgPool2d: [((0,), "output_size"), (((1, -2),), "output_size"), ((None,), "output_size")],
    Flatten: [((0,), "start_dim"), ((1, 2), "end_dim"), ((True,), "start_dim")],
    LeakyReLU: [
        ((float("nan"),), "negative_slope"),
        ((float("inf"),), "negative_slope"),
        (("a",), "negative_slope"),
        ((1j,), "negative_slope"),
    ],
    Softplus: [((0,), "beta"), ((-1.0,), "beta"), ((1.0, float("inf")), "threshold"), ((1.0, None), "threshold")],
    GELU: [(("exact",), "approximate"), ((None,), "approximate")],
    Elementwise: [
        ((1.0,), "function"),
        ((abs,), "function"),
        ((lambda x: x,), "four numbers"),
        ((lambda: 0,), "takes"),
        ((lambda x: (x, x, x, x), 1.0), "takes"),
        ((lambda x: (x, x, x, "x"),), "four numbers"),
        ((lambda x, a: (x, x, x, x), "a"), "parameter 1"),
        ((_undefined,), "missing"),
    ],
    Softmax: [((0,), "dim"), ((2,), "dim"), ((1.0,), "dim")],
    LogSoftmax: [((0,), "dim"), ((True,), "dim")],
    BatchNorm1d: [
        ((0,), "num_features"),
        ((3, 0.0), "eps"),
        ((3, -1e-5), "eps"),
        ((3, 1e-5, 1.5), "momentum"),
        ((3, 1e-5, None), "momentum"),
        ((3, 1e-5, 0.1, 1), "affine"),
    ],
    BatchNorm2d: [((2.5,), "num_features"), ((3, float("nan")), "eps")],
    CrossEntropy: [
        (([[1.0, 2.0]],), "weight"),
        ((["a", "b"],), "weight"),
        (([1.0, -1.0],), "weight"),
        (([1.0, float("nan")],), "weight"),
        (([[1.0], [1.0, 2.0]],), "weight"),
        (([],), "weight"),
        ((1.0,), "weight"),
        ((None, "none"), "reduction"),
        ((None, "mean", 1.5), "label_smoothing"),
        ((None, "mean", -0.1), "label_smoothing"),
        ((None, "mean", 0.0, 0.5), "ignore_index"),
    ],
    NLL: [
        ((np.ones((2, 2)),), "weight"),
        (([True],), "weight"),
        ((None, "batchmean"), "reduction"),
        ((None, "mean", None), "ignore_index"),
    ],
    MSE: [(("none",), "reduction"), ((None,), "reduction")],
    BCEWithLogits: [(("average",), "reduction")],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "word"), [(kind, *case) for kind, cases in REFUSED.items() for case in cases]
)
def test_constructors_refuse(kind: type, arguments: tuple[object, ...], word: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        kind(*arguments)
    assert str(caught.value).startswith(f"{kind.__name__}: ")
    assert word in str(caught.value)


def test_numpy_integers_and_pairs_are_accepted() -> None:
    layer = Conv2d(np.int64(2), 4, [3, 1], stride=np.int32(2), padding=(1, 0))  # type: ignore[arg-type]
    assert (layer.in_channels, layer.kernel_size, layer.stride, layer.padding) == (2, (3, 1), (2, 2), (1, 0))
    assert type(layer.in_channels) is int
    assert MaxPool2d((2, 3)).stride == (2, 3)


def test_errors_are_also_the_builtin_ones() -> None:
    with pytest.raises(ValueError, match="kernel_size"):
        MaxPool2d(0)
    with pytest.raises(TypeError, match="kernel_size"):
        MaxPool2d(1.5)  # type: ignore[arg-type]
    assert issubclass(ArgumentError, RopError) and issubclass(ArgumentTypeError, RopError)


# ---- registry, immutability, copies ----------------------------------------------------------------------------------


def test_every_layer_and_loss_is_exported() -> None:
    assert set(LAYERS) | set(LOSSES) <= set(layers.__all__)
    assert all(getattr(layers, name) is kind for name, kind in (LAYERS | LOSSES).items())
    public = {
        name for name in layers.__all__ if isinstance(getattr(layers, name), type) and name not in ("Layer", "Loss")
    }
    assert public == set(LAYERS) | set(LOSSES)


@pytest.mark.parametrize("thing", [Linear(2, 3), ReLU(), Softplus(), CrossEntropy([1.0, 2.0])], ids=repr)
def test_layers_and_losses_cannot_be_changed(thing: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="cannot be changed"):
        thing.reduction = "sum"
    with pytest.raises(ArgumentTypeError, match="cannot be changed"):
        del thing.reduction


def test_class_weights_are_a_copy() -> None:
    given = np.ones(2)
    loss = CrossEntropy(given)
    given[0] = 5
    assert loss.weight is not None and loss.weight.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        loss.weight[0] = 5


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
def test_nets_survive_copying(duplicate) -> None:
    tied = Linear(3, 3)
    net = Sequential(tied, GELU("tanh"), tied, Tanh(), BatchNorm1d(3))
    twin = duplicate(net)
    assert names(twin) == names(net) and twin.layers[0] is not tied
    assert np.array_equal(twin.init(seed=2), net.init(seed=2))
    assert repr(twin) == repr(net) and twin.summary_text((3,)) == net.summary_text((3,))


# ---- scalar functions ------------------------------------------------------------------------------------------------


ACTIVATION_CASES = [*(kind() for kind in layers.ACTIVATIONS.values()), GELU("tanh"), Softplus(2.5, 3.0)]


@pytest.mark.parametrize("layer", ACTIVATION_CASES, ids=repr)
def test_each_derivative_is_the_derivative_of_the_one_before(layer) -> None:
    step = 1e-5
    for x in (-6.0, -2.3, -0.4, 0.0, 0.7, 1.1, 1.9, 5.0):
        ahead = layer.function(x + step, *layer.parameters)
        behind = layer.function(x - step, *layer.parameters)
        at = layer.function(x, *layer.parameters)
        for k in range(3):
            assert (ahead[k] - behind[k]) / (2 * step) == pytest.approx(at[k + 1], abs=2e-9, rel=1e-8)


@pytest.mark.parametrize("layer", ACTIVATION_CASES, ids=repr)
def test_scalar_functions_are_finite_far_out_and_honest_about_nan(layer) -> None:
    for x in (-1e4, -750.0, 750.0, 1e4):
        value, *derivatives = layer.function(x, *layer.parameters)
        assert np.isfinite([value, *derivatives]).all()
        assert np.allclose(derivatives[1:], 0, atol=1e-12)
    assert np.isnan(layer.function(float("nan"), *layer.parameters)).any()


# ---- targets ---------------------------------------------------------------------------------------------------------


def test_labels_and_weights() -> None:
    targets = CrossEntropy(weight=[1.0, 2.0, 4.0]).targets([2, -100, 1], 3, (3,), np.float32)
    assert targets.dense is None and targets.labels is not None
    assert targets.labels.dtype == np.int64 and targets.labels.tolist() == [[2], [0], [1]]
    assert targets.weight.dtype == np.float32 and targets.weight.tolist() == [[4], [0], [2]]
    assert targets.total == 6


def test_pixels_are_the_second_axis() -> None:
    y = np.arange(12).reshape(2, 2, 3) % 4
    targets = NLL().targets(y.astype(np.uint8), 2, (4, 2, 3), np.float64)
    assert targets.labels is not None and np.array_equal(targets.labels, y.reshape(2, 6))
    assert targets.weight.shape == (2, 6) and targets.total == 12


def test_label_smoothing_spreads_class_weights() -> None:
    targets = CrossEntropy([1.0, 0.0, 4.0], label_smoothing=0.3).targets([2, 1, -100], 3, (3,), np.float64)
    assert targets.labels is None and targets.dense is not None
    np.testing.assert_allclose(targets.dense, [[0.1, 0, 2.8 + 0.4], [0.1, 0, 0.4], [0.0, 0, 0]])
    np.testing.assert_allclose(targets.weight, [[3.3], [0.5], [0.0]])
    assert targets.total == 4  # the weights of the true classes, 4 and 0


def test_probability_targets() -> None:
    t = np.array([[0.25, 0.75], [2.0, 0.0]], np.float32)
    targets = CrossEntropy([1.0, 2.0], label_smoothing=0.5).targets(t, 2, (2,), np.float32)
    assert targets.dense is not None and targets.dense.dtype == np.float32
    np.testing.assert_allclose(targets.dense, [[0.375, 1.25], [1.25, 0.5]])
    assert targets.total == 2


def test_dense_targets_are_a_copy_in_the_working_dtype() -> None:
    y = np.array([[0.0, 1.0, 0.5]])
    targets = BCEWithLogits().targets(y, 1, (3,), np.float32)
    y[:] = 9
    assert targets.dense is not None and targets.dense.dtype == np.float32
    assert targets.dense.tolist() == [[0, 1, 0.5]] and targets.total == 3
    assert targets.weight.tolist() == [[1]]


def test_a_sum_over_left_out_labels_is_fine_but_a_mean_is_not() -> None:
    assert NLL(reduction="sum").targets([-100], 1, (3,), np.float32).total == 0
    with pytest.raises(ArgumentError, match="NLL: expected at least one label"):
        NLL().targets([-100], 1, (3,), np.float32)


NAN = float("nan")


@pytest.mark.parametrize(
    ("loss", "y", "error", "message"),
    [
        (CrossEntropy(), [0, 3], ArgumentError, "labels from 0 to 2"),
        (CrossEntropy(), [0, -1], ArgumentError, "got labels from -1 to 0"),
        (CrossEntropy(), np.array([0, 2**64 - 1], np.uint64), ArgumentError, "labels from 0 to 2"),
        (CrossEntropy(), [0.0, 1.0], ArgumentTypeError, "integers"),
        (CrossEntropy(), [True, False], ArgumentTypeError, "integers"),
        (CrossEntropy(), ["a", "b"], ArgumentTypeError, "integers"),
        (CrossEntropy(), [0j, 1j], ArgumentTypeError, "integers"),
        (CrossEntropy(), np.array([0, None]), ArgumentTypeError, "integers"),
        (CrossEntropy(), [[0], [1, 2]], ArgumentTypeError, "array"),
        (CrossEntropy(), [0, 1, 2], ArgumentError, r"shape \(2,\), got \(3,\)"),
        (CrossEntropy(), [[0], [1]], ArgumentError, r"y\.reshape\(\(2,\)\)"),
        (CrossEntropy(), [[0, 1, 0], [0, 0, 1]], ArgumentError, "argmax"),
        (CrossEntropy(), np.ones((2, 4)), ArgumentError, r"outputs' shape \(2, 3\), got \(2, 4\)"),
        (CrossEntropy(), [[0.5, 0.5, -0.1]] * 2, ArgumentError, "at least 0"),
        (CrossEntropy(), [[0.5, 0.5, NAN]] * 2, ArgumentError, "finite"),
        (CrossEntropy(ignore_index=1), np.ones((2, 3)), ArgumentError, "ignore_index"),
        (CrossEntropy([1.0, 2.0]), [0, 1], ArgumentError, "one weight per class, 3"),
        (CrossEntropy(), [-100, -100], ArgumentError, "at least one label"),
        (NLL(), np.ones((2, 3)), ArgumentTypeError, "integers"),
        (NLL([1.0, 2.0]), [0, 1], ArgumentError, "one weight per class, 3"),
        (MSE(), np.ones(3), ArgumentError, r"outputs' shape \(2, 3\), got \(3,\)"),
        (MSE(), np.ones((2, 1)), ArgumentError, "broadcast"),
        (MSE(), np.ones((2, 3), int), ArgumentTypeError, "float32 or float64, got int"),
        (MSE(), np.full((2, 3), np.inf), ArgumentError, "finite"),
        (MSE(), np.full((2, 3), 1e300), ArgumentError, "NaN or Inf in float32"),
        (BCEWithLogits(), np.full((2, 3), 1.5), ArgumentError, r"\[0, 1\]"),
        (BCEWithLogits(), np.full((2, 3), -0.5), ArgumentError, r"\[0, 1\]"),
        (BCEWithLogits(), np.ones((2, 3), bool), ArgumentTypeError, "float32 or float64, got bool"),
    ],
)
def test_targets_refused(loss: layers.Loss, y: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        loss.targets(y, 2, (3,), np.float32)
    assert str(caught.value).startswith(f"{type(loss).__name__}: ")


@pytest.mark.parametrize("kind", LOSSES.values())
def test_an_empty_batch_is_refused(kind: type[layers.Loss]) -> None:
    with pytest.raises(ArgumentError, match="empty batch"):
        kind().targets(np.zeros((0,), int), 0, (3,), np.float32)


def test_names_are_given_and_order_the_parameters() -> None:
    x, body, head, tanh = Input(), Linear(3, 3), Linear(3, 2), Tanh()
    net = Graph(x, head(tanh(body(x))), names={head: "head", body: "block.body", tanh: "block.tanh"})
    assert [slot.name for slot in net.slots] == ["head.weight", "head.bias", "block.body.weight", "block.body.bias"]
    assert net.offset(body, "weight") == 8 and net.name_of(tanh) == "block.tanh"
    assert net.where(net.nodes[1]) == "layer block.body (Linear 3→3)"
    assert [line.split()[0] for line in net.summary_text().splitlines()[1:4]] == ["block.body", "block.tanh", "head"]


@pytest.mark.parametrize(
    ("names", "error", "word"),
    [
        (lambda a, b: {a: "a"}, ArgumentError, "none for Linear 3→2"),
        (lambda a, b: {a: "a", b: "a"}, ArgumentError, "'a' for 2 layers"),
        (lambda a, b: {a: "a", b: "b", Linear(3, 3): "c"}, ArgumentError, "3 names for 2 layers"),
        (lambda a, b: {a: "a", b: 7}, ArgumentTypeError, "strings"),
        (lambda a, b: {a: "a", b: ""}, ArgumentTypeError, "strings"),
        (lambda a, b: ["a", "b"], ArgumentTypeError, "dict"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: Any, error: type[Exception], word: str) -> None:
    x, a, b = Input(), Linear(3, 3), Linear(3, 2)
    with pytest.raises(error, match=re.escape(word)):
        Graph(x, b(a(x)), names=names(a, b))
