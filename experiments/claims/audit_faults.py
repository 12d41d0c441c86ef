"""Samples after which an audit finds each known fault, and what else it says.

    python -m experiments audit_faults
    python -m experiments audit_faults --num-samples 2000 --seeds 2 --output runs/quick.parquet

The total variation is exact, by enumeration. Everything else is measured on ``--num-samples`` of the faulty
rules: a sequential audit from each of several ``--seeds``, which goes on to the last sample, and an audit of
a fixed number of samples from the first seed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from experiments.runner import markdown, run
from otmd import audit
from tests.faulty_verifiers import Control, negative_controls

FALSE_ALARM = 1e-3
BATCH = 10_000


def run_sequential(control: Control, num_samples: int, seed: int) -> tuple[int | None, float]:
    """The sample at which a sequential audit finds the fault, and ln wealth at the end."""
    rng = np.random.default_rng(seed)
    sequential = audit.SequentialAudit(control.target_probs, control.law, FALSE_ALARM)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    while sequential.num_samples < num_samples:
        drafts = control.law.sample(rng=rng, size=min(BATCH, num_samples - sequential.num_samples))
        sequential.update(drafts, sampler(drafts))
    return sequential.detected_at, sequential.log_wealth


def run_fixed(control: Control, num_samples: int) -> audit.Losslessness:
    """An audit of a fixed number of samples."""
    rng = np.random.default_rng(0)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    p = control.target_probs
    law = control.law
    return audit.losslessness(sampler, p, law, num_samples, FALSE_ALARM, batched=True, rng=rng)


def measure(
    rng: np.random.Generator, fault: str, num_samples: int, seeds: int
) -> Iterator[dict[str, Any]]:
    """The row of one fault."""
    control = next(control for control in negative_controls() if control.name == fault)
    exact = audit.enumerated(control.verifier, control.target_probs, control.law)
    runs = [run_sequential(control, num_samples, seed) for seed in range(seeds)]
    fixed = run_fixed(control, num_samples)
    needed = audit.samples_to_detect(
        control.target_probs,
        control.law,
        exact.output_distribution,
        power=0.5,
        false_alarm=FALSE_ALARM,
    )
    yield {
        "total_variation": exact.total_variation,
        "accepts": exact.acceptance,
        "ceiling": exact.ceiling,
        "found_in": sum(at is not None for at, _ in runs),
        "median_samples": float(np.median([at or np.inf for at, _ in runs])),
        "median_log_wealth": float(np.median([wealth for _, wealth in runs])),
        "fixed_for_half": needed,
        "fixed_faulty": fixed.faulty,
        "fixed_p_value": fixed.p_value,
        "impossible": fixed.impossible,
        "total_variation_bound": fixed.total_variation_bound,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table as the how-to page shows it."""
    proof = f"; {row['impossible']} impossible" if row["impossible"] else ""
    wealth = "∞" if np.isinf(row["median_log_wealth"]) else f"{row['median_log_wealth']:,.0f}"
    median = row["median_samples"]
    return [
        row["fault"],
        f"{row['total_variation']:.2g}",
        f"{row['accepts']:.3f} / {row['ceiling']:.3f}",
        f"{row['found_in']} of {row['seeds']}",
        "none" if np.isinf(median) else f"{median:,.0f}",
        f"{row['fixed_for_half']:,}",
        wealth,
        f"{row['fixed_p_value']:.1e}{proof}",
        f"{row['total_variation_bound']:.2g}",
    ]


def tasks_of(chosen: Any) -> list[dict[str, Any]]:
    """A task for each fault."""
    settings = {"num_samples": chosen.num_samples, "seeds": chosen.seeds}
    return [{"fault": control.name, **settings} for control in negative_controls()]


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure every control and print the table."""
    defaults: dict[str, Any] = {"num_samples": 200_000, "seeds": 21, "workers": 1}
    output = Path("runs/audit_faults.parquet")
    table = run(measure, arguments, 8.0, tasks_of, output=output, **defaults)
    heads = ("fault", "total variation", "accepts / at most", "found", "samples", "fixed", "ln e")
    print(markdown((*heads, "p", "at least"), map(cells, table.to_dicts())))
    return table
