"""Plots of the results of runner.py: time by engine, cost relative to a gradient, ratios to torch and JAX, growth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import growth
from .engines import ENGINES
from .flops import ALGORITHM
from .report import WANTED, Ratios, Row, ratios, slower
from .settings import middle

if TYPE_CHECKING:  # matplotlib is needed only for a plot
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

RATIO_TITLES = (
    "loss + ∇f: time over rop's (more is better)",
    "loss + ∇f + Hv + R²: the same",
    "peak memory of rop over torch's (less is better)",
)
COLOURS = {"rop": "#0072b2", "torch": "#d55e00", "torch.func": "#e69f00", "jax": "#009e73"}

LIMIT = f"limit of the machine ({ALGORITHM})"


def plots(result: dict[str, Any], folder: Path, name: str = "") -> list[Path]:
    """All plots for which there are results; the files that were written, each starting with the name."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for dtype in result["settings"]["dtypes"]:
        rows = [row for row in result["rows"] if row["dtype"] == dtype and row["status"] == "ok"]
        for plot, draw in (("time", _time), ("relative", _relative), ("batch", _batch), ("ratios", _ratios)):
            figures[f"{plot}-{dtype}"] = dtype, draw(rows)
    grown = [row for row in result["growth"] if row["status"] == "ok"]
    figures["growth"] = growth.DTYPE, _growth(grown, result["slopes"])
    written = []
    for plot, (dtype, figure) in figures.items():
        if figure is not None:
            environment = result["environment"]
            figure.supxlabel(f"{environment['cpu']}, {environment['threads']} threads, {dtype}, medians", fontsize=8)
            written.append(folder / (f"{name}-{plot}.png" if name else f"{plot}.png"))
            figure.savefig(written[-1], dpi=150)
    return written


def _figure(panels: int, columns: int = 3) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    across, down = min(panels, columns), -(-panels // columns)
    figure = Figure(figsize=(4.2 * across, 3.2 * down + 0.4), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def _legend(figure: Figure, axes: Axes, title: str) -> None:
    """One legend for all panels, above them."""
    handles, labels = axes.get_legend_handles_labels()
    place = {"loc": "outside upper center", "ncols": len(labels)}
    figure.legend(handles, labels, **place, fontsize=9, frameon=False, title=title)


def _names(rows: list[Row]) -> list[str]:
    return [name for name in ENGINES if any(name in row["engines"] for row in rows)]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"


def own_batch(row: Row) -> bool:
    """Whether the problem of a row has a batch size of its own."""
    return row.get("own_batch", False)


def _plain_ticks(axis: Axis, values: list[int]) -> None:
    """The measured values themselves as ticks of a logarithmic axis, six at most."""
    from matplotlib.ticker import NullLocator

    shown = values[:: -(-len(values) // 6)]
    axis.set_ticks(shown, [str(value) for value in shown])
    axis.set_minor_locator(NullLocator())


def _time(rows: list[Row]) -> Figure | None:
    """Jets and steps by engine, one group of bars per problem, the limit as a line; an epoch beside them."""
    if not rows:
        return None
    batch = middle(row["batch"] for row in rows if not own_batch(row)) if not all(map(own_batch, rows)) else 0
    by_work = {
        work: [row for row in rows if row["work"] == work and (row["batch"] == batch or own_batch(row))]
        for work in ("jet", "step", "epoch")
    }
    by_work = {work: chosen for work, chosen in by_work.items() if chosen}
    if "jet" not in by_work:
        return None
    from matplotlib.figure import Figure

    lines = [[work for work in some if work in by_work] for some in (("jet",), ("step", "epoch"))]
    lines = [works for works in lines if works]
    figure = Figure(figsize=(max(6.0, 2.0 + 1.1 * len(by_work["jet"])), 0.9 + 2.9 * len(lines)), layout="constrained")
    grid = figure.add_gridspec(len(lines), 1)
    panels: dict[str, Axes] = {}
    for k, works in enumerate(lines):
        across = grid[k].subgridspec(1, len(works), width_ratios=[len(by_work[work]) + 0.3 for work in works])
        panels.update({work: figure.add_subplot(across[j]) for j, work in enumerate(works)})
    for work, axes in panels.items():
        _bars(axes, work, by_work[work])
    at = f" at batch {batch}" if batch else ""
    _legend(figure, panels["jet"], f"Time{at}, and how many times that of rop")
    return figure


def _bars(axes: Axes, work: str, chosen: list[Row]) -> None:
    """Times of one work: a group of bars per problem, a bar per engine, the limit as a dotted line."""
    names = _names(chosen)
    width = 0.84 / len(names)
    for j, name in enumerate(names):
        there = [(k, row) for k, row in enumerate(chosen) if name in row["engines"]]
        at = [k + (j - (len(names) - 1) / 2) * width for k, _ in there]
        heights = [1e3 * row["engines"][name]["median_s"] for _, row in there]
        bars = axes.bar(at, heights, width * 0.94, color=COLOURS[name], label=name)
        ratios = [slower(row, name, []) if name != "rop" else None for _, row in there]
        axes.bar_label(bars, [_times(ratio) for ratio in ratios], fontsize=6.5, padding=1)
    for k, row in enumerate(chosen):
        axes.hlines(
            1e3 * row["limit_s"],
            k - 0.45,
            k + 0.45,
            colors="black",
            linestyles=(0, (1, 1)),
            label="" if k else LIMIT,
        )
    names = [f"{row['problem']}\nbatch {row['batch']}" if own_batch(row) else row["problem"] for row in chosen]
    size = 7 if any(map(own_batch, chosen)) else None
    axes.set_xticks(range(len(chosen)), names, fontsize=size)
    whole = work != "epoch" or chosen[0]["steps"] == chosen[0]["all_steps"]
    title = {
        "jet": "loss + ∇f + Hv + R²",
        "step": "step, 10 power iterations",
        "epoch": "SGD epoch" if whole else f"{chosen[0]['steps']} SGD steps",
    }[work]
    axes.margins(y=0.08)
    axes.set(yscale="log", title=title, xlim=(-0.6, len(chosen) - 0.4))
    axes.title.set_fontsize(10)
    axes.grid(axis="y", which="major", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.set_ylabel("ms")


def _relative(rows: list[Row]) -> Figure | None:
    """The cost of Hv and of the whole jet, in gradients of the same engine."""
    if not {"grad", "hvp", "jet"} <= {row["work"] for row in rows}:
        return None
    batch = middle(row["batch"] for row in rows)
    rows = [row for row in rows if row["batch"] == batch]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, panels = _figure(len(problems))
    for axes, problem in zip(panels, problems, strict=True):
        of = {row["work"]: row["engines"] for row in rows if row["problem"] == problem}
        names = [name for name in ENGINES if all(name in of.get(work, {}) for work in ("grad", "hvp", "jet"))]
        for j, work in enumerate(("hvp", "jet")):
            cost = [of[work][name]["median_s"] / of["grad"][name]["median_s"] for name in names]
            at = [k + (j - 0.5) * 0.4 for k in range(len(names))]
            bars = axes.bar(at, cost, 0.37, color=[COLOURS[name] for name in names], alpha=0.5 + 0.5 * j)
            axes.bar_label(bars, [f"{value:.1f}" for value in cost], fontsize=8, padding=1)
        axes.set_xticks(range(len(names)), names)
        axes.margins(y=0.14)
        axes.set(title=problem, ylabel="gradients")
        axes.title.set_fontsize(10)
    figure.suptitle(
        f"Cost in gradients of the same engine, batch {batch}: Hv (pale), loss + ∇f + Hv + R² (full)", fontsize=10
    )
    return figure


def _ratios(rows: list[Row]) -> Figure | None:
    """For problems with a batch size of their own: times of torch and JAX over rop's, memory over torch's."""
    reached = ratios(rows)
    if not reached:
        return None
    figure, panels = _figure(3)
    figure.set_size_inches(12.6, 1.8 + 0.45 * len(reached))
    wanted = [WANTED.get(problem, Ratios()) for problem, _, _ in reached]
    for axes, work in zip(panels, ("gradient", "jet"), strict=False):
        for name, offset in (("torch", -0.2), ("jax", 0.2)):
            values = [getattr(measured, f"{name}_{work}") for measured in reached.values()]
            _across(axes, values, offset, COLOURS[name], name)
        _goals(axes, [getattr(goal, f"torch_{work}") for goal in wanted], -0.2)
    _across(panels[2], [measured.memory for measured in reached.values()], 0.0, COLOURS["rop"], "rop")
    _goals(panels[2], [goal.memory for goal in wanted], 0.0)
    for axes, title in zip(panels, RATIO_TITLES, strict=True):
        axes.axvline(1, color="black", linewidth=0.6)
        axes.set_yticks(range(len(reached)), [""] * len(reached))
        axes.set(ylim=(len(reached) - 0.5, -0.5), title=title)
        axes.title.set_fontsize(10)
        axes.margins(x=0.14)
    panels[0].set_yticks(
        range(len(reached)), [f"{problem}, batch {batch}" for problem, batch, _ in reached], fontsize=8
    )
    _legend(figure, panels[0], "Problems with a batch size of their own; a stroke is what is wanted against torch")
    return figure


def _across(axes: Axes, values: list[float | None], offset: float, colour: str, label: str) -> None:
    """A horizontal bar for each value that is known."""
    known = [(k + offset, value) for k, value in enumerate(values) if value is not None]
    if known:
        bars = axes.barh([at for at, _ in known], [value for _, value in known], 0.37, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.2f}" for _, value in known], fontsize=7, label_type="center", color="white")


def _goals(axes: Axes, values: list[float | None], offset: float) -> None:
    """A stroke for each value that is wanted."""
    known = [(k + offset, value) for k, value in enumerate(values) if value is not None]
    if known:
        places, wanted = [at for at, _ in known], [value for _, value in known]
        axes.scatter(wanted, places, s=60, color="black", marker="|", label="wanted", zorder=3)


def _lines(axes: Axes, points: list[tuple[float, Row]]) -> None:
    """Time over one quantity: a line per engine, the limit dotted."""
    for name in ENGINES:
        at = [(x, 1e3 * row["engines"][name]["median_s"]) for x, row in points if name in row["engines"]]
        if at:
            axes.plot(*zip(*at, strict=True), "o-", color=COLOURS[name], label=name, markersize=4)
    axes.plot([x for x, _ in points], [1e3 * row["limit_s"] for _, row in points], "k:", label=LIMIT)
    axes.set(xscale="log", yscale="log", ylabel="ms")
    axes.grid(which="major", linewidth=0.4)


def _batch(rows: list[Row]) -> Figure | None:
    """Growth with the batch, problem by problem."""
    jets = [row for row in rows if row["work"] == "jet" and not own_batch(row)]
    if len({row["batch"] for row in jets}) < 2:
        return None
    problems = list(dict.fromkeys(row["problem"] for row in jets))
    figure, panels = _figure(len(problems))
    for axes, problem in zip(panels, problems, strict=True):
        mine = sorted((row for row in jets if row["problem"] == problem), key=lambda row: row["batch"])
        _lines(axes, [(row["batch"], row) for row in mine])
        axes.set(title=problem, xlabel="batch")
        axes.title.set_fontsize(10)
        _plain_ticks(axes.xaxis, [row["batch"] for row in mine])
    _legend(figure, panels[0], "loss + ∇f + Hv + R²")
    return figure


def _growth(rows: list[Row], slopes: list[dict[str, Any]]) -> Figure | None:
    """Growth with width, depth and batch."""
    axes_measured = [axis for axis in growth.AXES if any(row["axis"] == axis.name for row in rows)]
    if not axes_measured:
        return None
    figure, panels = _figure(len(axes_measured))
    for axes, axis in zip(panels, axes_measured, strict=True):
        mine = [row for row in rows if row["axis"] == axis.name]
        _lines(axes, [(row["value"], row) for row in mine])
        fitted = [f"{entry['engine']} {entry['slope']:.2f}" for entry in slopes if entry["axis"] == axis.name]
        axes.set(title=axis.about, xlabel=f"{axis.name}\nslope against {axis.against}: {', '.join(fitted)}")
        axes.title.set_fontsize(10)
        axes.xaxis.label.set_fontsize(9)
        _plain_ticks(axes.xaxis, [row["value"] for row in mine])
    _legend(figure, panels[0], "loss + ∇f + Hv + R²")
    return figure
