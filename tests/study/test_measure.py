import os
import subprocess
import sys
import time
from typing import Any
from unittest.mock import Mock

import joblib
import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import otmd
from otmd.laws import TopThen, WithoutReplacement, WithReplacement
from otmd.models import Dataset, open_dataset
from otmd.probabilities import Processing
from otmd.storage.store import Store
from otmd.study import DEFAULT_LAWS, measure, summarise
from otmd.study.device import closed_forms
from otmd.study.rows import make_settings
from otmd.study.run import load_results
from otmd.study.runner import WORKER_ENVIRONMENT, run_jobs


def top_two(draft_probs: np.ndarray, num_drafts: int) -> TopThen:
    return TopThen(draft_probs, num_drafts, top=2)


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


def process_id(_: int) -> tuple[int, set[str | None]]:
    return os.getpid(), {os.environ.get(name) for name in THREADS}


def test_rows_come_in_the_order_of_the_dataset_and_of_the_settings(table, dataset):
    """Their values are in golden.json."""
    keys = ["index", "temperature", "top_k", "law", "num_drafts", "verifier"]
    assert not table.select(keys).is_duplicated().any()
    assert table["index"].is_sorted()
    first = table.filter(pl.col("index") == 0)
    assert first["prompt_id"].unique().to_list() == [dataset.positions[0].prompt_id]
    assert first["law"].unique(maintain_order=True).to_list() == [law.__name__ for law in DEFAULT_LAWS]
    numbers = first.filter(temperature=0.6).group_by("law", "num_drafts").len()
    assert {(law, n): number for law, n, number in numbers.iter_rows()} == {
        **{("WithReplacement", n): 4 for n in range(1, 5)},
        **{("WithoutReplacement", n): 4 if n == 1 else 2 for n in range(1, 5)},
        **{("Stratified", n): 4 if n == 1 else 3 for n in range(1, 5)},
        **{("Greedy", n): 4 if n == 1 else 2 for n in range(1, 5)},
        **{("TopK", n): 1 for n in range(1, 5)},
        ("Hub", 2): 3,
    }
    steps = first.select("temperature", "top_k").unique(maintain_order=True).rows()
    assert steps == [(0.6, None), (1.0, None), (1.0, 3)]
    rated = table.filter(pl.col("gap").is_not_null())
    middle = (rated["rate_low"] + rated["rate_high"]) / 2
    assert rated["gap"].to_numpy() == pytest.approx((rated["optimal"] - middle).to_numpy(), abs=1e-12)


def test_where_a_law_is_undefined_the_rates_are_null_and_the_status_says_why(table):
    three_tokens = table.filter(pl.col("top_k") == 3, pl.col("num_drafts") == 4)
    undefined = three_tokens.filter(pl.col("law").is_in(["WithoutReplacement", "Greedy"]))
    assert len(undefined) > 0
    assert undefined["status"].str.starts_with("undefined: num_drafts").all()
    for column in ("optimal", "rate", "rate_low", "rate_high", "gap", "gap_low", "gap_high"):
        assert undefined[column].is_null().all()
    others = three_tokens.filter(pl.col("law") == "WithReplacement")
    assert (others["status"] == "ok").all()


def test_processes_threads_and_this_process_agree(dataset, monkeypatch):
    """Each worker process has one thread, and the parent keeps its own."""
    alone = measure(dataset, num_drafts=(2,), workers=1)
    with joblib.parallel_config("threading", n_jobs=2):
        assert_frame_equal(measure(dataset, num_drafts=(2,)), alone)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    assert_frame_equal(measure(dataset, num_drafts=(2,), workers=2), alone)
    results = list(run_jobs(process_id, range(4), workers=2))
    assert os.getpid() not in {pid for pid, _ in results}
    assert all(values == {"1"} for _, values in results)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert not WORKER_ENVIRONMENT.keys() & os.environ.keys()


def test_laws_may_be_functions_and_pairs_and_the_settings_lambdas(dataset):
    laws = [WithReplacement, top_two, ("mine", lambda q, n: WithoutReplacement(q, n))]
    settings = {"num_drafts": (2, 3), "workers": 1}
    table = measure(dataset, laws=laws, verifiers=[otmd.TargetOnly()], **settings)
    assert set(table["law"]) == {"WithReplacement", "top_two", "mine"}
    twin = measure(dataset, laws=[WithoutReplacement], verifiers=[otmd.TargetOnly], **settings)
    mine = table.filter(pl.col("law") == "mine")
    for column in ("optimal", "rate"):
        assert mine[column].to_numpy() == pytest.approx(twin[column].to_numpy(), abs=1e-12)


def test_a_law_from_another_draft_distribution_has_its_own_curve(dataset):
    def flattened(q, n):
        return WithReplacement(np.full(q.shape, 1 / q.size), n)

    table = measure(dataset, laws=[flattened], num_drafts=(2,), workers=1)
    target, _ = dataset.arrays([0])
    uniform = WithReplacement(np.full(dataset.vocab_size, 1 / dataset.vocab_size), 2)
    best = otmd.optimal_acceptance(Processing()(target[0]), uniform).rate
    assert table["optimal"][0] == pytest.approx(best, abs=1e-12)


def test_the_order_of_the_cuts_is_a_column(dataset, tmp_path):
    orders = ("transformers", "llama.cpp", "vllm")
    cut = [Processing(0.5, 3, 0.7, 0.2, order) for order in orders]
    options = {"laws": [otmd.WithReplacement], "num_drafts": (2,), "workers": 1}
    table = measure(dataset, processing=cut, output=tmp_path / "out", **options)
    assert table["order"].unique(maintain_order=True).to_list() == [*orders]
    for step in cut:
        p, q = (step(logits[0]) for logits in dataset.arrays([4]))
        optimal = table.filter(index=4, order=step.order)["optimal"]
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, 2)).rate
        assert optimal.to_numpy() == pytest.approx(best, abs=1e-12)
    assert [row["order"] for row in summarise(table, ["order"]).to_dicts()] == [*orders]
    # A table of an earlier version has no such column.
    old = tmp_path / "old.parquet"
    table.filter(pl.col("order") == "transformers").drop("order").write_parquet(old)
    assert load_results(old)["order"].unique().to_list() == ["transformers"]


class Choosy(otmd.TargetOnly):
    """Cannot rate one position, known by its likeliest token's mass."""

    refused = 0.0

    def position_bounds(self, target, law, tol):
        if target.max() == self.refused and law.num_drafts == 2:
            raise ValueError("mass below\n1e-280")
        return super().position_bounds(target, law, tol)


def test_a_position_that_cannot_be_rated_has_a_status_and_no_other_row_is_lost(dataset):
    target, _ = dataset.arrays([5])
    rule = Choosy()
    rule.refused = Processing()(target[0]).max()
    settings = {"laws": [otmd.Greedy], "num_drafts": (2, 3), "workers": 1}
    table = measure(dataset, verifiers=[("TargetOnly", rule)], **settings)
    whole = measure(dataset, verifiers=[otmd.TargetOnly], **settings)
    bad = (pl.col("index") == 5) & (pl.col("num_drafts") == 2)
    row = table.filter(bad).row(0, named=True)
    assert row["status"] == "unrated: mass below 1e-280"
    assert row["rate"] is None
    assert row["optimal"] == whole.filter(bad)["optimal"][0]
    assert_frame_equal(table.filter(~bad), whole.filter(~bad))
    assert summarise(table)["undefined"].to_list() == [1, 0]


@pytest.mark.slow
def test_workers_take_laws_that_were_defined_at_a_prompt(dump):
    code = (
        "import otmd\n"
        "class Mine(otmd.Greedy): pass\n"
        f"table = otmd.measure({str(dump)!r}, laws=[Mine, ('own', lambda q, n: Mine(q, n))],\n"
        "                     verifiers=[otmd.TargetOnly], num_drafts=[2], workers=2)\n"
        "assert set(table['status']) == {'ok'}\n"
    )
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_a_run_ends_is_not_lost(dataset, monkeypatch, tmp_path):
    monkeypatch.setattr(Store, "write", Mock(side_effect=KeyboardInterrupt))
    settings = {"laws": [otmd.Greedy], "verifiers": [otmd.TargetOnly], "num_drafts": (2,)}
    with joblib.parallel_config("threading"), pytest.raises(KeyboardInterrupt):
        measure(dataset, **settings, output=tmp_path)


def test_jobs_are_drawn_as_workers_come_free():
    drawn = 0

    def jobs():
        nonlocal drawn
        for number in range(50):
            drawn += 1
            yield number

    def slow(number):
        time.sleep(0.02)
        return number

    with joblib.parallel_config("threading"):
        work = run_jobs(slow, jobs(), workers=2)
        next(work)
        assert drawn <= 6
        assert len(list(work)) == 49


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]
STEPS = [otmd.Processing(0.0), otmd.Processing(0.6), otmd.Processing(), otmd.Processing(top_k=3)]
SETTINGS: dict[str, Any] = {"num_drafts": (1, 2, 4), "processing": STEPS, "workers": 1}


@pytest.fixture
def wide(tmp_path) -> Dataset:
    """Logits of 70 tokens, at one position all draft mass on one of them."""
    rng = np.random.default_rng(0)
    target = 3 * rng.standard_normal((5, 70)).astype(np.float32)
    draft = target + rng.standard_normal((5, 70)).astype(np.float32)
    draft[3, 1:] = -np.inf
    np.savez(tmp_path / "dump.npz", target_logits=target, draft_logits=draft)
    return open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize("where", DEVICES)
def test_the_table_is_the_same(where: str, wide: Dataset) -> None:
    table = measure(wide, device=where, **SETTINGS)
    assert_frame_equal(table, measure(wide, **SETTINGS), abs_tol=1e-12, rel_tol=0)
    assert table["status"].str.starts_with("undefined").sum() > 0


def test_a_difference_would_be_found(wide: Dataset, monkeypatch) -> None:
    monkeypatch.setattr(
        "otmd.tensors.greedy_rates", lambda p, q, n, validate: 0.9 * torch.ones(p.shape[0], n)
    )
    table = measure(wide, device="cpu", **SETTINGS)
    with pytest.raises(AssertionError):
        assert_frame_equal(table, measure(wide, **SETTINGS), abs_tol=1e-6, rel_tol=0)


def test_closed_forms_are_not_computed_twice_and_the_rest_is_by_the_cpu(wide, monkeypatch) -> None:
    rules = [otmd.KSequential, otmd.RecursiveRejection]
    settings = {"num_drafts": (2,), "workers": 1, "verifiers": rules}
    whole = measure(wide, **settings)
    # Computed on the CPU, it would fail.
    monkeypatch.setattr(otmd.KSequential, "acceptance_bounds", None)
    assert_frame_equal(measure(wide, device="cpu", **settings), whole, abs_tol=1e-12, rel_tol=0)
    served = closed_forms(make_settings([otmd.WithReplacement, otmd.Greedy], rules, (2,)))
    assert set(served) == {
        ("WithReplacement", 2, "KSequential"),
        ("WithReplacement", 2, "RecursiveRejection"),
    }


PLACE = ("prompt_id", "domain", "position")


def test_with_workers_and_probabilities(dataset: Dataset, tmp_path) -> None:
    with joblib.parallel_config("threading", n_jobs=2):
        found = measure(dataset, num_drafts=(2,), device="cpu")
    expected = measure(dataset, num_drafts=(2,), workers=1)
    assert_frame_equal(found, expected, abs_tol=1e-12)
    probs = [otmd.Processing()(values) for values in dataset.arrays(range(len(dataset)))]
    np.savez(tmp_path / "probs.npz", target_probs=probs[0], draft_probs=probs[1])
    for where in ("cpu", None):
        found = measure(tmp_path / "probs.npz", num_drafts=(2,), workers=1, device=where)
        assert_frame_equal(found.drop(PLACE), expected.drop(PLACE), abs_tol=1e-12)
