"""Orders of the preference rule on strata: its own, the largest ratio first, the better at each position.

    python experiments/claims/law_orders.py

At the first position of each text that ``draft_laws.py`` collected, beside the default, the law's optimum and
the rule on drafts with replacement. The default is the better of its own order and one by half octaves of the
ratio. All orders are lossless, and which one is taken depends on p and q alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import sweep_script
from draft_laws import chosen_prompts, collected, own_order, ratio_order, text_file

import otmd

PROMPTS = range(12)


def orders(
    rng: np.random.Generator, draft: str, temperature: float, num_drafts: int
) -> Iterator[dict[str, Any]]:
    """A row for each prompt."""
    step, chosen = otmd.Processing(temperature), chosen_prompts()
    per_domain = len(chosen) // 4
    for number, prompt in enumerate(chosen):
        if number % per_domain not in PROMPTS:
            continue
        with np.load(text_file(prompt)) as arrays:
            at = int(np.flatnonzero(arrays["temperature"] == temperature)[0])
            target, drafted = step(arrays["target"][at]), step(arrays[draft][at])
        law = otmd.Stratified(drafted, num_drafts)
        alike = otmd.WithReplacement(drafted, num_drafts)
        own, ratio, default = (
            float(otmd.acceptance_rate(rule, target, law))
            for rule in (
                otmd.Preference(own_order),
                otmd.Preference(ratio_order),
                otmd.Preference(),
            )
        )
        yield {
            "domain": prompt.domain,
            "prompt_id": prompt.id,
            "own_order": own,
            "ratio_order": ratio,
            "better_order": max(own, ratio),
            "default": default,
            "optimum": float(otmd.optimal_acceptance(target, law).rate),
            "with_replacement": float(otmd.acceptance_rate(otmd.Preference(), target, alike)),
            "greedy": float(otmd.optimal_acceptance(target, otmd.Greedy(drafted, num_drafts)).rate),
        }


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Measure, and print means."""
    table = sweep_script.run(
        orders, __doc__ or "", 6.0, arguments, lambda tasks: collected(chosen_prompts())
    )
    means = table.group_by("temperature", "draft", "num_drafts", maintain_order=True).agg(
        pl.col(
            "own_order",
            "ratio_order",
            "better_order",
            "default",
            "optimum",
            "with_replacement",
            "greedy",
        ).mean()
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_width_chars=140):
        print(means)
    return table


if __name__ == "__main__":
    main()
