"""Means and tokens per step over prompts, with errors that treat each prompt as one observation."""

from collections.abc import Sequence

import numpy as np
import polars as pl

RESAMPLES = 4000


def resampled(domains: Sequence[str], resamples: int = RESAMPLES) -> np.ndarray:
    """Weight of each prompt in each resample, shape (resamples, prompts), by a bootstrap within domains.

    Of a domain's n prompts n − 1 are drawn, else errors of few prompts are too small (Rao & Wu 1988).
    """
    rng = np.random.default_rng(0)
    weights = np.zeros((resamples, len(domains)))
    for domain in sorted(set(domains)):
        columns = np.flatnonzero([name == domain for name in domains])
        size = columns.size
        drawn = rng.multinomial(size - 1, np.full(size, 1 / size), size=resamples)
        weights[:, columns] = drawn * size / (size - 1)
    return weights


def summarise(rows: pl.DataFrame, settings: Sequence[str], rule: str, reference: str) -> pl.DataFrame:
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
        ``value`` is all tokens over all steps. ``error`` and ``difference_error`` are standard errors over
        the same resampled prompts for all rules.

    Raises
    ------
    ValueError
        If a prompt lacks a setting or rule, or a domain has only one prompt, so that its error is unknown.
    """
    cells = rows.select(*settings, rule).unique(maintain_order=True)
    prompts = rows.select("domain", "prompt").unique(maintain_order=True)
    _require_complete(rows, cells, prompts)
    ordered = prompts.join(cells, how="cross").join(
        rows, on=["domain", "prompt", *settings, rule], how="left", maintain_order="left"
    )
    shape = (prompts.height, cells.height)
    tokens, steps = (ordered[name].to_numpy().reshape(shape) for name in ("tokens", "steps"))
    weights = resampled(prompts["domain"].to_list())
    means = tokens.sum(axis=0) / steps.sum(axis=0)
    draws = (weights @ tokens) / (weights @ steps)
    listed = cells.to_dicts()
    summary = []
    for at, cell in enumerate(listed):
        row = {**cell, "value": means[at], "error": draws[:, at].std(ddof=1)}
        base = listed.index(compared) if (compared := {**cell, rule: reference}) in listed else at
        if base != at:
            row["difference"] = means[at] - means[base]
            row["difference_error"] = (draws[:, at] - draws[:, base]).std(ddof=1)
        summary.append({**row, "prompts": prompts.height, "steps": steps[:, at].sum()})
    return pl.DataFrame(summary, infer_schema_length=None)


def _require_complete(rows: pl.DataFrame, cells: pl.DataFrame, prompts: pl.DataFrame) -> None:
    if rows.height != cells.height * prompts.height:
        expected = f"{cells.height} settings for each of {prompts.height} prompts"
        raise ValueError(f"rows: got {rows.height}, expected {expected}")
    single = prompts.group_by("domain").len().filter(pl.col("len") < 2)["domain"].to_list()
    if single:
        raise ValueError(f"rows: got one prompt of {single}, expected two or more")


def cell_text(row: pl.DataFrame) -> str:
    """``2.345 ± 0.012 (+0.101 ± 0.003)``: value, and difference from the reference; empty without a row."""
    if row.is_empty():
        return ""
    cell = row.row(0, named=True)
    text = f"{cell['value']:.3f} ± {cell['error']:.3f}"
    if cell["difference"] is None:
        return text
    # Adding 0 removes the sign of −0.
    difference = round(cell["difference"], 3) + 0.0
    return f"{text} ({difference:+.3f} ± {cell['difference_error']:.3f})"
