"""The content of a report on an experiment, before it is given a form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rop.reproduce.claims import Claim, Verdict
from rop.reproduce.records import Records
from rop.reproduce.spec import Experiment
from rop.reproduce.tables import Plot, Table

__all__ = ["Report", "report_of"]

LEGEND = (
    "Ours: median [smallest, largest] over seeds (95 % bootstrap interval of the median). “not run” stands where there "
    "is no record."
)


@dataclass(frozen=True)
class Report:
    """All that is shown of an experiment; ``name`` is that of its files, and ``verdicts`` has a verdict by variant for
    each claim."""

    name: str
    title: str
    tables: Sequence[Table]
    plots: Sequence[Plot]
    verdicts: Sequence[tuple[Claim, Mapping[str, Verdict]]]
    deviations: Sequence[str]
    facts: Sequence[str]
    command: str


def report_of(
    experiment: Experiment, records: Records, command: str, *, quick: bool = False, others: int = 0
) -> Report:
    """The report on these records. ``others`` is the number of records of other settings, which are left out."""
    verdicts = [
        (claim, {variant: claim.decide(records.where(variant=variant)) for variant in experiment.variants})
        for claim in experiment.claims
    ]
    return Report(
        f"{experiment.name}-quick" if quick else experiment.name,
        experiment.title,
        experiment.tables(records),
        experiment.plots(records) if experiment.plots and len(records) else [],
        verdicts,
        experiment.deviations,
        _facts(experiment, records, quick, others),
        command,
    )


def _facts(experiment: Experiment, records: Records, quick: bool, others: int) -> list[str]:
    """Where the numbers come from."""
    seeds = sorted({record.task.seed for record in records})
    facts = [
        f"{len(records)} records" + (f", seeds {', '.join(map(str, seeds))}." if seeds else ": nothing is run yet.")
    ]
    if quick:
        facts.append(f"A quick run, to see that everything works, not a reproduction: {experiment.quick}.")
    versions = sorted({", ".join(f"{k} {v}" for k, v in record.versions.items() if v) for record in records})
    machines = sorted({record.machine for record in records})
    facts += [f"Versions: {'; '.join(versions)}."] * bool(versions)
    facts += [f"Machines: {'; '.join(machines)}."] * bool(machines)
    facts += [f"{others} records of other settings are in the folder and left out."] * bool(others)
    return facts
