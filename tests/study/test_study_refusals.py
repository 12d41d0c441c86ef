from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import polars as pl
import pytest
from test_decoding_costs import text
from test_ranking import by_hand

import otmd
from otmd.probabilities import Processing
from otmd.study import (
    decoding_costs,
    draw_decoding,
    draw_gaps,
    load_results,
    measure,
    print_report,
    rank,
    summarise,
)


@pytest.fixture
def made(dataset, table, tmp_path):
    return SimpleNamespace(dataset=dataset, table=table, at=tmp_path)


def measured(**settings):
    return lambda m: measure(m.dataset, **settings)


def measured_with(change, **settings):
    """On arrays that are made from the logits of target and draft."""

    def call(m):
        np.savez(m.at / "dump.npz", **change(*m.dataset.arrays(range(len(m.dataset)))))
        measure(m.at / "dump.npz", workers=1, **settings)

    return call


def with_nan(target, draft):
    target[7, 2] = np.nan
    return {"target_logits": target, "draft_logits": draft}


def as_probs(target, draft):
    return {"target_probs": Processing()(target), "draft_probs": Processing()(draft)}


def summed(**settings):
    return lambda m: summarise(m.table, **settings)


def drawn(ending, change=lambda table: summarise(table)):
    return lambda m: draw_gaps(change(m.table), [m.at / "gaps.png", m.at / f"gaps.{ending}"])


def coarse(table):
    return summarise(table, by=["law"])


def without_gaps(table):
    return summarise(table).with_columns(pl.lit(None, pl.Float64).alias("gap"))


def no_results(m):
    pl.DataFrame({"law": ["Hub"]}).write_parquet(m.at / "results.parquet")
    load_results(m.at / "results.parquet")


COSTS = decoding_costs([{"alone": text(8, 8, 1.0)}])
UNSERVED = {"verifiers": [otmd.SpecHub], "laws": [otmd.Greedy]}
REFUSED = [
    (measured(laws=[]), "laws: got nothing"),
    (measured(laws=[otmd.Hub], num_drafts=(3,)), "laws, verifiers.*Hub with 3: num_drafts"),
    (measured(laws=[otmd.Hub, otmd.Hub]), "laws: got Hub twice"),
    (measured(laws=[lambda q, n: otmd.Hub(q, n)]), "laws: got a lambda, expected a name"),
    (measured(verifiers=[]), "verifiers: got nothing"),
    (measured(**UNSERVED), "expected at least one law that a verifier serves .none does"),
    (measured(num_drafts=()), "num_drafts: got nothing"),
    (measured(num_drafts=(0,)), "num_drafts: got 0, expected a whole number"),
    (measured(processing=()), "processing: got nothing"),
    (measured(processing=(Processing(), Processing())), "processing: got .* twice"),
    (measured(tol=0.0), "tol: got 0.0"),
    (measured(workers=0), "workers: got 0"),
    *((measured(device=name), f"device: got '{name}'") for name in ["nowhere", "meta:x", "cuda:99"]),
    (lambda _: measure(MagicMock()), "dataset: got no positions"),
    *((measured_with(with_nan, **settings), r"dataset: position 7 \(prompt 7, position 7\)") for settings in (
        {}, {"device": "cpu"}, {"device": "cpu", "verifiers": [otmd.KSequential]},
        {"device": "cpu", "processing": [Processing(top_k=3)]})),
    (measured_with(as_probs, processing=[Processing(0.6)]), "position 0 .*got .* dataset of prob"),
    (no_results, "no table of `otmd measure`.*'rate'"),
    (lambda m: load_results(m.at / "nowhere"), "no such file"),
    (lambda m: summarise(m.table.clear()), "table: got no rows"),
    (summed(by=[]), "by: got nothing"),
    (summed(by=["law", "colour"]), r"by: got \['colour'\]"),
    (lambda _: rank(by_hand().filter(prompt_id="p0")), "table: got rows of 1 prompts"),
    (lambda m: print_report(coarse(m.table)), "summary: got no"),
    (drawn("pdf", coarse), "summary: got columns"),
    (drawn("pdf", without_gaps), "summary: got no defined gap"),
    (drawn("jpg"), r"gaps\.jpg, expected an ending of \.png, \.pdf"),
    (lambda m: decoding_costs([]), "texts: got none"),
    (lambda m: decoding_costs([{"alone": text(8, 8, 1.0)}] * 3, 2), "texts: got 3 for 2"),
    (lambda m: draw_decoding(COSTS, [m.at / "a.txt"]), "expected an ending"),
    (lambda m: draw_decoding([], [m.at / "a.png"]), "costs: got none"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(made, call, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(made)
    assert not list(made.at.glob("gaps.*"))
