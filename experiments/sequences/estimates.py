"""Tokens per step over prompts, with standard errors that treat each prompt as one observation."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray

RESAMPLES = 4000


def summarise(
    rows: pl.DataFrame, settings: Sequence[str], rule: str, reference: str
) -> pl.DataFrame:
    """Tokens per step for each setting and rule, and the difference from a reference rule.

    Parameters
    ----------
    rows : DataFrame
        Rows by prompt, setting and rule, with columns ``domain``, ``prompt``, ``tokens`` and ``steps``.
        Every prompt has every setting and rule, so that rules are compared on the same texts.
    settings : sequence of str
        The columns that define a setting.
    rule : str
        The column of the rules.
    reference : str
        The rule that others are compared with; the difference is null where a setting lacks it.

    Returns
    -------
    DataFrame
        ``value`` is all tokens over all steps. ``error`` and ``difference_error`` are standard errors by
        the bootstrap over prompts within domains, the same prompts for all rules.

    Raises
    ------
    ValueError
        If a prompt lacks a setting or rule, or a domain has only one prompt, so that its error is unknown.
    """
    cells = rows.select(*settings, rule).unique(maintain_order=True)
    prompts = rows.select("domain", "prompt").unique(maintain_order=True)
    if rows.height != cells.height * prompts.height:
        raise ValueError(
            f"rows: got {rows.height}, expected {cells.height} settings for each of {prompts.height} prompts"
        )
    alone = prompts.group_by("domain").len().filter(pl.col("len") < 2)
    if not alone.is_empty():
        raise ValueError(
            f"rows: got one prompt of {alone['domain'].to_list()}, expected two or more"
        )
    ordered = prompts.join(cells, how="cross").join(
        rows, on=["domain", "prompt", *settings, rule], how="left", maintain_order="left"
    )
    shape = (prompts.height, cells.height)
    tokens, steps = (ordered[name].to_numpy().reshape(shape) for name in ("tokens", "steps"))
    drawn = _resampled(prompts["domain"].to_list())
    means = tokens.sum(axis=0) / steps.sum(axis=0)
    resampled = (drawn @ tokens) / (drawn @ steps)
    summary = []
    for at, cell in enumerate(cells.to_dicts()):
        row = {**cell, "value": means[at], "error": resampled[:, at].std(ddof=1)}
        base = [i for i, other in enumerate(cells.to_dicts()) if other == {**cell, rule: reference}]
        if base and base[0] != at:
            apart = resampled[:, at] - resampled[:, base[0]]
            row |= {
                "difference": means[at] - means[base[0]],
                "difference_error": apart.std(ddof=1),
            }
        summary.append({**row, "prompts": prompts.height, "steps": steps[:, at].sum()})
    return pl.DataFrame(summary, infer_schema_length=None)


def _resampled(domains: list[str]) -> FloatArray:
    """Weight of each prompt in each resample, shape (RESAMPLES, prompts).

    Of a domain's n prompts n − 1 are drawn, else errors of few prompts are too small (Rao & Wu 1988).
    """
    rng = np.random.default_rng(0)
    weights = np.zeros((RESAMPLES, len(domains)))
    for domain in sorted(set(domains)):
        own = np.flatnonzero([other == domain for other in domains])
        drawn = rng.multinomial(own.size - 1, np.full(own.size, 1 / own.size), size=RESAMPLES)
        weights[:, own] = drawn * own.size / (own.size - 1)
    return weights


def cell_text(row: pl.DataFrame) -> str:
    """``2.345 ± 0.012 (+0.101 ± 0.003)``: value, and difference from the reference; empty without a row."""
    if row.is_empty():
        return ""
    found = row.row(0, named=True)
    text = f"{found['value']:.3f} ± {found['error']:.3f}"
    if found["difference"] is None:
        return text
    # Adding 0 removes the sign of −0.
    difference = round(found["difference"], 3) + 0.0
    return f"{text} ({difference:+.3f} ± {found['difference_error']:.3f})"
