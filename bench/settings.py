"""The settings of a run: problems, batch sizes, precisions, engines, works, and the time spent on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .engines import ENGINES, EPOCHS, ON_CUDA, WORKS
from .machine import cores
from .problems import MAIN, Problem

EVERYWHERE = ("grad", "hvp", "jet")  # in a thin run the other works are measured at batch 128 in float32 only
QUICK_WORKS = ("grad", "hvp", "jet", "step", "epoch", "penalised")


@dataclass(frozen=True)
class Settings:
    """All combinations are measured, or a `thin` selection: float64 and the longer works at one batch size only.

    A problem may fix its batch size, and may say which works and precisions it is measured in unless the user `named`
    others.
    """

    problems: tuple[Problem, ...] = MAIN
    batches: tuple[int, ...] = (32, 128, 512)
    dtypes: tuple[str, ...] = ("float32", "float64")
    engines: tuple[str, ...] = tuple(ENGINES)
    works: tuple[str, ...] = tuple(WORKS)
    threads: int = 0  # 0: as many as there are cores
    device: str = "cpu"  # or "cuda": rop and torch on a GPU
    rounds: int = 9
    burst: float = 0.03  # seconds of one turn
    patience: float = 6.0  # seconds for the timing of a row; long calls get fewer turns, but at least 3
    epoch_steps: int = 0  # the largest number of steps of an epoch; 0: all of them
    thin: bool = False
    growth: bool = False  # also growth with width, depth and batch
    named: tuple[str, ...] = ()  # of "works" and "dtypes": those that the user named

    def resolved(self) -> Settings:
        return replace(self, threads=self.threads or cores())

    def steps(self, problem: Problem, batch: int, work: str = "epoch") -> int:
        """The number of steps of an epoch, without a last partial batch."""
        return min(problem.rows // batch, self.epoch_steps or problem.rows, EPOCHS[work] or problem.rows)

    def batches_of(self, problem: Problem) -> tuple[int, ...]:
        """The batch sizes at which a problem is measured."""
        return (problem.batch,) if problem.batch else self.batches

    def works_at(self, problem: Problem, batch: int, dtype: str) -> tuple[str, ...]:
        """The works that are measured for a problem at this batch size and precision."""
        if problem.dtypes and "dtypes" not in self.named and dtype not in problem.dtypes:
            return ()
        works = [work for work in self.works if work not in EPOCHS or self.steps(problem, batch)]
        if problem.works and "works" not in self.named:
            works = [work for work in works if work in problem.works]
        if self.thin:
            main_batch, main_dtype = batch == middle(self.batches_of(problem)), dtype == self.dtypes[0]
            if not main_batch and not main_dtype:
                return ()
            if not main_batch or not main_dtype:
                works = [work for work in works if work in EVERYWHERE]
        return tuple(works)


def middle(batches: Iterable[int]) -> int:
    """The batch size that represents all of them: 128, or else the median."""
    known = sorted(set(batches))
    return 128 if 128 in known else known[len(known) // 2]


def quick(settings: Settings) -> Settings:
    """A run that ends within two minutes: three problems, one batch size, one precision, fewer works and rounds.

    torch.func is left out: it is nearly always slower than torch, and so the slowest to measure.
    """
    names = ("forest", "usps", "wide")
    engines = tuple(name for name in ENGINES if name != "torch.func")
    return replace(
        settings,
        engines=engines if settings.engines == Settings.engines else settings.engines,
        problems=tuple(p for p in MAIN if p.name in names) if settings.problems == MAIN else settings.problems,
        batches=(128,) if settings.batches == Settings.batches else settings.batches,
        dtypes=("float32",) if settings.dtypes == Settings.dtypes else settings.dtypes,
        works=QUICK_WORKS if settings.works == Settings.works else settings.works,
        rounds=5,
        patience=1.5,
        epoch_steps=100,
    )


def on_cuda(settings: Settings) -> Settings:
    """The same on a GPU, with the engines and works that can use one."""
    from .engines.cuda_engines import WORKS as ABLE

    return replace(
        settings,
        device="cuda",
        engines=tuple(name for name in settings.engines if name in ON_CUDA),
        works=tuple(work for work in settings.works if work in ABLE),
    )
