"""The audit of a recorded run: rows or a recorder's folder, their table, its statistics, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from otmd.audit.bands import bands_and_examples
from otmd.audit.base import derived_rng, validate_fraction, validate_level
from otmd.audit.claims import EVENTS, NUM_STATEMENTS, OUTPUTS
from otmd.audit.declared import NO_DRAFTS, LawMaker, law_name
from otmd.audit.judge import improbable_rows, is_tested, judge_claims, judge_rate
from otmd.audit.recorder import Declared, read_folder
from otmd.audit.report import Event, RecordedRunAudit
from otmd.audit.rows import read_ids, read_row, refuse_other_units
from otmd.audit.source import Source, numbered
from otmd.audit.table import POSITION, Table, Tabulator, table_of_all
from otmd.laws.base import RngLike
from otmd.probabilities import IntArray, Processing, wrong

_ROWS_SHOWN = 5
SMALLEST_FALSE_ALARM = 4e-5


def recorded_run(
    source: Source,
    law: str | LawMaker | None = None,
    false_alarm: float = 1e-3,
    *,
    rule: str | None = None,
    all_drafts: bool = False,
    end_tokens: Sequence[int] | None = None,
    bias: float = 0.1,
    target_processing: Processing | None = None,
    draft_processing: Processing | None = None,
    rng: RngLike = 0,
) -> RecordedRunAudit:
    """Audit a recorded run of an engine.

    Parameters
    ----------
    source : str, Path or sequence of mapping
        The folder of a :class:`Recorder`, a ``.jsonl`` or ``.jsonl.gz`` file, or rows with the same fields.
    law : str or callable, optional
        The law of the drafts of a position: with-replacement (or independent), without-replacement,
        conditional-poisson, greedy, hub, stratified, top-k, fixed for drafts that the text before them
        decides, or none for plain decoding. Or a callable that makes the law of ``draft_probs`` (V,) and
        ``num_drafts``, such as ``partial(Stratified, sharpness=1.5)``. Unless given, with-replacement. A
        folder has its own.
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty.
    rule : {"token", "block", "tree"}, optional
        How the engine decides: position by position, or on a block (block verification) or a tree (Traversal,
        layer verification) as a whole. Under the last two the outputs are tested at every depth, but the
        drafts and the acceptance at depth 0 alone. Unless given, "token". A folder has its own.
    all_drafts : bool
        Whether all drafts of every step are recorded, also those after a rejection: then drafts at every
        depth are tested under "block". A folder says so itself.
    end_tokens : sequence of int, optional
        The ids of the tokens that end a text: a step has no rows behind them. A folder has its own.
    bias : float
        A run passes only if a total variation of this size would have been found with probability 0.9.
    target_processing, draft_processing : Processing, optional
        The processing that makes the engine's probabilities of recorded logits, for all rows.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator. Equal seeds give equal audits; the engine may use an equal seed.

    Returns
    -------
    RecordedRunAudit
        ``print`` shows the verdict, what could be found, and the tests.

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file, row or field, which it names.

    Notes
    -----
    One pass keeps a few numbers of each row. The recorded p is taken to be the p that was meant.

    Examples
    --------
    >>> import otmd
    >>> row = {"target_probs": [0.5, 0.5], "draft_probs": [0.5, 0.5], "draft_tokens": [0]}
    >>> otmd.audit.recorded_run([row | {"output_token": 1}] * 10).outcome
    'INCONCLUSIVE'
    """
    processings = {"target": target_processing, "draft": draft_processing}
    validate_rates(false_alarm, bias)
    if isinstance(source, str | Path) and Path(source).is_dir():
        declared, table = read_folder(Path(source))
        given = {
            "law": law_name(law) if law is not None else None,
            "rule": rule,
            "end_tokens": end_tokens if end_tokens is None else tuple(end_tokens),
            **{f"{side}_processing": x for side, x in processings.items()},
        }
        for name, value in given.items():
            recorded = getattr(declared, name, None)
            if value is not None and value != recorded:
                raise wrong(name, value, f"{recorded}, as the run in {source} was recorded")
    else:
        declared = Declared(
            law_name(law or "with-replacement"),
            rule or "token",
            tuple(read_ids("end_tokens", list(end_tokens or ())).tolist()),
        )
        tabulator = Tabulator(law or "with-replacement", declared.rule, declared.end_tokens)
        rows, name = numbered(source, "records")
        checked = (read_row(number, fields, name, processings) for number, fields in rows)
        table = table_of_all((tabulator.lines(row, all_drafts) for row in checked), name)
    name = str(source) if isinstance(source, str | Path) else "records"
    generator = derived_rng(rng, "recorded_run")
    return audit_table(table, name, declared, false_alarm, bias, rng=generator)


def validate_rates(false_alarm: float, bias: float) -> None:
    """Raise ValueError for rates that no audit has, before anything is read."""
    if validate_level(false_alarm) < SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {SMALLEST_FALSE_ALARM:.0e}")
    validate_fraction("bias", bias)


def audit_table(
    table: Table,
    name: str,
    declared: Declared,
    false_alarm: float,
    bias: float,
    *,
    rng: np.random.Generator,
) -> RecordedRunAudit:
    """Audit the table of a source with this name; of texts, the law that is declared is empty."""
    is_position = table["slot"] == POSITION
    if not is_position.any():
        raise wrong(name, "no rows", "at least one")
    for side in ("target", "draft"):
        listed, unit = (table[f"{side}_{x}"][is_position] for x in ("listed", "unit"))
        refuse_other_units(name, side, listed, unit)
    level = false_alarm / NUM_STATEMENTS
    repetitions = judge_rate(table, "agrees", "agreement", level)
    events = {kind: table["row"][table[kind]] for kind in EVENTS}
    judged = table
    if repetitions and repetitions.too_high:
        # Of the tokens that one key decides, the first is as good as a random one.
        judged = {column: x[~table["repeats_context"]] for column, x in table.items()}
    events |= improbable_rows(judged, level)
    judged_claims = judge_claims(judged, level, of_texts=not declared.law, rng=rng)
    outputs = is_tested(judged, OUTPUTS)
    if declared.law not in ("", NO_DRAFTS):
        outputs &= judged["in_drafted_step"]
    full = table["vocab_size"][is_position]
    bands, examples = bands_and_examples(judged, judged_claims)
    return RecordedRunAudit(
        num_rows=int(is_position.sum()),
        num_draft_tokens=int(table["num_drafts"].sum()),
        num_in_drafted_steps=int(outputs.sum()),
        law=declared.law,
        rule=declared.rule,
        false_alarm=false_alarm,
        bias=float(bias),
        events=tuple(Event(kind, *_counted(rows)) for kind, rows in events.items() if rows.size),
        vocabularies={
            int(size): _counted(table["row"][is_position][full == size])
            for size in dict.fromkeys(full[full >= 0].tolist())
        },
        claims=judged_claims,
        acceptance=judge_rate(judged, "accepted", "ceiling", level),
        repetitions=repetitions,
        gaps=tuple(table["gap"][~np.isnan(table["gap"])].tolist()),
        bands=bands,
        examples=examples,
        metrics=_metrics(table) if declared.law else {},
    )


def _counted(rows: IntArray) -> tuple[int, tuple[int, ...]]:
    return rows.size, tuple(rows[:_ROWS_SHOWN].tolist())


def _metrics(table: Table) -> dict[str, float]:
    """The numbers that are called acceptance, by name."""
    names = ("depth", "num_drafts", "accepted", "decided")
    depth, num_drafts, accepted, decided = (table[x][table["slot"] == POSITION] for x in names)
    verified = decided & (num_drafts > 0)
    num_steps = int(np.count_nonzero(verified & (depth == 0)))
    num_accepted = int(accepted.sum())
    ceilings = table["ceiling"][~np.isnan(table["ceiling"])]
    metrics = {}
    if num_steps:
        metrics["acceptance rate"] = num_accepted / int(verified.sum())
    if ceilings.size:
        metrics["optimal acceptance rate"] = float(ceilings.mean())
    if num_steps:
        metrics |= {
            "draft acceptance rate": num_accepted / int(num_drafts.sum()),
            "accepted drafts per step": num_accepted / num_steps,
            "tokens per step": 1.0 + num_accepted / num_steps,
        }
    if num_steps and depth[verified].any():
        at_depth = np.bincount(depth[verified])
        accepted_at = np.bincount(depth[accepted], minlength=at_depth.size)
        for d in np.flatnonzero(at_depth):
            metrics[f"conditional acceptance at depth {d}"] = float(accepted_at[d] / at_depth[d])
            metrics[f"acceptance per step at depth {d}"] = float(accepted_at[d] / num_steps)
    return metrics
