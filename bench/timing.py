"""Timing in turns: engines take short bursts one after the other; medians and minima over all bursts are kept.

The peak memory of an engine is that of the way that counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any, Protocol

from .engines import UNITS
from .settings import Settings
from .worker import fitting

HOPELESS = 1.5  # a way whose trial is slower than the engine's best by this factor is not timed
PAUSE = 0.02  # seconds between bursts, after which the threads of the previous engine have stopped spinning


class Worker(Protocol):
    """The only method of processes.Client that timing needs."""

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """The answer to a command."""


def time_in_turns(
    row: dict[str, Any], able: Mapping[str, Worker], gemm: Worker, rates: dict[str, float], settings: Settings
) -> None:
    """Times a row by bursts in turns; the matrix product whose rate is the limit takes its first turns too.

    Ways of an engine that are about equally fast at first all take part, and the one with the best median counts.
    """
    tried, seconds = {}, {}
    work, dtype = row["work"], row["dtype"]
    for name, client in able.items():
        client.ask("forget")
        tried[name] = client.ask("try_out", work=work)["seconds"]
        fast = HOPELESS * min(tried[name].values())
        seconds[name] = {way: list[float]() for way, once in tried[name].items() if once <= fast}
    start = time.perf_counter()
    for turn in range(settings.rounds):
        if turn >= 3 and time.perf_counter() - start > settings.patience:
            break
        for name, client in able.items():
            time.sleep(PAUSE)
            for way, so_far in seconds[name].items():
                so_far += burst(client, work, way, tried[name][way], settings.burst)
        if turn < 3:
            time.sleep(PAUSE)
            rates[dtype] = max(rates.get(dtype, 0.0), gemm.ask("gemm", dtype=dtype)["rate"])
    for name, client in able.items():
        measured = summary(seconds[name], tried[name], row["engines"][name]["error"], UNITS.get(work, 1))
        if len(tried[name]) > 1:  # the peak so far is that of the way that needs most
            client.ask("forget")
            client.ask("time", work=work, way=measured["way"], calls=1, warm=False)
        row["engines"][name].update(measured, peak_bytes=client.ask("memory")["peak_bytes"])


def burst(client: Worker, work: str, way: str, seconds: float, budget: float) -> list[float]:
    """Times of one turn of a way, whose calls take about `seconds`. Calls longer than the budget need no warm-up."""
    calls, warm = fitting(seconds, budget), seconds < budget
    return client.ask("time", work=work, way=way, calls=calls, warm=warm)["seconds"]


def summary(
    seconds: dict[str, list[float]], tried: dict[str, float], errors: dict[str, Any], unit: int
) -> dict[str, Any]:
    """The best way of an engine, its times per unit of the work, and its errors."""
    medians = {way: statistics.median(times) / unit for way, times in seconds.items()}
    way = min(medians, key=lambda way: medians[way])
    return {
        "way": way,
        "median_s": medians[way],
        "min_s": min(seconds[way]) / unit,
        "calls": len(seconds[way]),
        "error": errors[way],
        "tried_s": {way: medians.get(way, once / unit) for way, once in tried.items()},
    }
