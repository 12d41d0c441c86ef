"""What an audit finds of each known fault, and after how many samples.

    python experiments/audit_faults.py
    python experiments/audit_faults.py --quick --output runs/quick.parquet

The total variation is exact, by enumeration. Everything else is measured on samples of the faulty rules: a
sequential audit from each of several seeds, which goes on to the last sample, and an audit of a fixed number
of samples from the first seed.
Results are kept as they come; the same command goes on where it stopped.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from progress_store import progress_store

from otmd import audit

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from faulty_verifiers import Control, negative_controls

OUTPUT = Path("runs/audit_faults.parquet")
FALSE_ALARM = 1e-3
BATCH = 10_000


def look_on(control: Control, num_samples: int, seed: int) -> tuple[int | None, float]:
    """The sample at which a sequential audit finds the fault, and ln wealth at the end."""
    rng = np.random.default_rng(seed)
    sequential = audit.SequentialAudit(control.target_probs, control.law, FALSE_ALARM)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    while sequential.num_samples < num_samples:
        drafts = control.law.sample(rng=rng, size=min(BATCH, num_samples - sequential.num_samples))
        sequential.update(drafts, sampler(drafts))
    return sequential.detected_at, sequential.log_wealth


def look_once(control: Control, num_samples: int) -> audit.Losslessness:
    """An audit of a fixed number of samples."""
    rng = np.random.default_rng(0)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    where = control.target_probs, control.law, num_samples, FALSE_ALARM
    return audit.losslessness(sampler, *where, batched=True, rng=rng)


def measure(control: Control, num_samples: int, seeds: int) -> dict[str, Any]:
    """One row of the table."""
    exact = audit.enumerated(control.verifier, control.target_probs, control.law)
    runs = [look_on(control, num_samples, seed) for seed in range(seeds)]
    found = [at for at, _ in runs if at is not None]
    fixed = look_once(control, num_samples)
    return {
        "fault": control.name,
        "num_samples": num_samples,
        "seeds": seeds,
        "total_variation": exact.total_variation,
        "accepts": exact.acceptance,
        "ceiling": exact.ceiling,
        "found_in": len(found),
        "median_samples": float(np.median([at if at else np.inf for at, _ in runs])),
        "median_log_wealth": float(np.median([wealth for _, wealth in runs])),
        "fixed_for_half": audit.samples_to_detect(
            control.target_probs,
            control.law,
            exact.output_distribution,
            power=0.5,
            false_alarm=FALSE_ALARM,
        ),
        "fixed_faulty": fixed.faulty,
        "fixed_p_value": fixed.p_value,
        "impossible": fixed.impossible,
        "total_variation_bound": fixed.total_variation_bound,
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table as the how-to page shows it."""
    proof = f"; {row['impossible']} impossible" if row["impossible"] else ""
    wealth = "∞" if np.isinf(row["median_log_wealth"]) else f"{row['median_log_wealth']:,.0f}"
    median = row["median_samples"]
    cells = (
        row["fault"],
        f"{row['total_variation']:.2g}",
        f"{row['accepts']:.3f} / {row['ceiling']:.3f}",
        f"{row['found_in']} of {row['seeds']}",
        "none" if np.isinf(median) else f"{median:,.0f}",
        f"{row['fixed_for_half']:,}",
        wealth,
        f"{row['fixed_p_value']:.1e}{proof}",
        f"{row['total_variation_bound']:.2g}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure every control and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--quick", action="store_true", help="few samples, two seeds")
    options = parser.parse_args()
    num_samples, seeds = (2_000, 2) if options.quick else (200_000, 21)
    controls = negative_controls()
    rows = []
    with progress_store(options.output) as store:
        for number, control in enumerate(controls):
            name = f"{number:02}-{num_samples}-{seeds}"
            rows += store.keep(
                name, partial(lambda own: [measure(own, num_samples, seeds)], control)
            )
        store.finish()
    head = "fault", "total variation", "accepts / at most", "found", "samples", "fixed", "ln e", "p"
    print("| " + " | ".join((*head, "at least")) + " |")
    print("|---" * (len(head) + 1) + "|")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
