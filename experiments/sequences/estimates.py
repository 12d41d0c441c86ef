"""Tokens per step over prompts, with errors that know that positions of one prompt are alike."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from otmd.probabilities import FloatArray

RESAMPLES = 4000


def summarise(
    rows: pl.DataFrame, settings: Sequence[str], rule: str, reference: str
) -> pl.DataFrame:
    """Tokens per step for each setting and rule, and its distance to a rule of reference.

    Parameters
    ----------
    rows : DataFrame
        One row a prompt, setting and rule, with columns ``domain``, ``prompt``, ``tokens`` and ``steps``.
        Every prompt has all of them, so that rules are compared on the same texts.
    settings : sequence of str
        Columns that tell settings apart.
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
        If a prompt lacks a setting or rule, or a domain has one prompt, from which no error can be told.
    """
    cells = rows.select(*settings, rule).unique(maintain_order=True)
    prompts = rows.select("domain", "prompt").unique(maintain_order=True)
    if rows.height != cells.height * prompts.height:
        raise ValueError(
            f"rows: got {rows.height}, wanted {cells.height} settings for each of {prompts.height} prompts"
        )
    alone = prompts.group_by("domain").len().filter(pl.col("len") < 2)
    if not alone.is_empty():
        raise ValueError(f"rows: got one prompt of {alone['domain'].to_list()}, wanted two or more")
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

    Of n prompts of a domain n − 1 are drawn, lest few seem to agree more than they do (Rao & Wu 1988).
    """
    rng = np.random.default_rng(0)
    weights = np.zeros((RESAMPLES, len(domains)))
    for domain in sorted(set(domains)):
        own = np.flatnonzero([other == domain for other in domains])
        drawn = rng.multinomial(own.size - 1, np.full(own.size, 1 / own.size), size=RESAMPLES)
        weights[:, own] = drawn * own.size / (own.size - 1)
    return weights


def cell_text(row: pl.DataFrame) -> str:
    """``2.345 ± 0.012 (+0.101 ± 0.003)``: value, and distance to the reference; empty without a row."""
    if row.is_empty():
        return ""
    found = row.row(0, named=True)
    text = f"{found['value']:.3f} ± {found['error']:.3f}"
    if found["difference"] is None:
        return text
    # Without the sign of a zero.
    difference = round(found["difference"], 3) + 0.0
    return f"{text} ({difference:+.3f} ± {found['difference_error']:.3f})"
