"""Nets without computing anything: names, the flat vector, shapes, tables, and what nets refuse."""

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
    MSE,
    NLL,
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Concat,
    Conv2d,
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
def test_init_refuses_other_dtypes(dtype: Any) -> None:
    net = Sequential(BatchNorm1d(3))
    with pytest.raises(ArgumentTypeError, match="dtype must be float32 or float64"):
        net.init(dtype=dtype)
    with pytest.raises(ArgumentTypeError, match="dtype must be float32 or float64"):
        net.init_state(dtype=dtype)


@pytest.mark.parametrize("seed", [-1, 1.5, "zero"])
def test_init_refuses_other_seeds(seed: Any) -> None:
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
        (lambda: Sequential(LogSoftmax()), (4, 2), "or (batch, C, H, W); sequences are not supported, every sample"),
        (lambda: Sequential(LogSoftmax()), (4, 2, 1, 1), "a Flatten layer before it would give 8 features"),
        (
            lambda: Sequential(Linear(8, 2)),
            (5, 8),
            "layer 0 (Linear 8→2): expected input (batch, 8), got (batch, 5, 8); sequences are not supported, every "
            "sample must be one vector",
        ),
        (lambda: Sequential(Linear(8, 2)), (4, 2), "got (batch, 4, 2); put a Flatten layer before it"),
        (lambda: Sequential(Linear(8, 2)), (4, 2, 2), "and a Flatten layer before it would give 16 features"),
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


# ---- copies and names ----------------------------------------------------------------------------------------------


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
