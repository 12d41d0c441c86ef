"""The table of rates measured from logits, and the run of two models that makes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from harness.conftest import prompts, tiny  # noqa: F401 - fixtures
from tensor_pairs import in_each_dtype, on_each_device

import otmd
from otmd.harness import HarnessError, NGram, NGramDraft, collect
from otmd.harness.variants import skip_layers
from otmd.measurement import summarise
from otmd.measurement.device_rates import device_rates
from otmd.measurement.rows import SCHEMA
from otmd.tensors import measure_logits

KEYS = ["index", "temperature", "law", "num_drafts", "verifier"]
TEMPERATURES = (0.0, 0.6, 1.0)
OPTIONS: dict[str, Any] = {"positions_per_prompt": 3, "max_new_tokens": 8, "batch_size": 2}
SERVED = [
    ("WithReplacement", "RecursiveRejection"),
    ("WithReplacement", "KSequential"),
    ("WithReplacement", "TargetOnly"),
    ("Greedy", "GreedyCoupling"),
    ("Hub", "SpecHub"),
]


def by_numpy(dataset: object, num_drafts: tuple[int, ...]) -> pl.DataFrame:
    """The same measurement by otmd.measure, without the pairs that tensors do not serve."""
    table = otmd.measure(
        dataset,  # type: ignore[arg-type]
        laws=[otmd.WithReplacement, otmd.Greedy, otmd.Hub],
        num_drafts=num_drafts,
        processing=[otmd.Processing(temperature=t) for t in TEMPERATURES],
        workers=1,
    )
    pairs = pl.DataFrame(SERVED, schema=["law", "verifier"], orient="row")
    return table.join(pairs, on=["law", "verifier"], how="semi", maintain_order="left")


def assert_same_rows(got: pl.DataFrame, want: pl.DataFrame, tolerance: float) -> None:
    got, want = got.sort(KEYS), want.sort(KEYS)
    assert got.select(KEYS).equals(want.select(KEYS))
    for name in ("optimal", "rate", "gap"):
        assert got[name].is_null().equals(want[name].is_null())
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=tolerance, err_msg=name)
    assert (got["status"] == "ok").equals(want["status"] == "ok")


@on_each_device
@in_each_dtype
def test_the_table_is_that_of_measure(dtype: torch.dtype, device: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    target = 3 * rng.standard_normal((5, 70)).astype(np.float32)
    draft = target + rng.standard_normal((5, 70)).astype(np.float32)
    draft[3, 1:] = -np.inf
    np.savez(tmp_path / "dump.npz", target_logits=target, draft_logits=draft)
    p, q = (torch.from_numpy(x).to(dtype).to(device) for x in (target, draft))
    got = measure_logits(p, q, TEMPERATURES, (1, 2, 4))
    want = by_numpy(otmd.harness.open_dataset(tmp_path / "dump.npz"), (1, 2, 4))
    assert_same_rows(got, want, 1e-6 if dtype == torch.float32 else 1e-12)
    assert got["status"].str.starts_with("undefined").sum() > 0
    assert {name: got.schema[name] for name in got.columns}.items() <= SCHEMA.items()
    assert got.select(KEYS[:4]).equals(got.select(KEYS[:4]).sort("index", maintain_order=True))


def test_a_difference_would_be_found() -> None:
    logits = torch.zeros(1, 4)
    table = measure_logits(logits, logits, [1.0], [2])
    with pytest.raises(AssertionError):
        assert_same_rows(table, table.with_columns(pl.col("rate") + 1e-5), 1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target_logits": torch.zeros(4)}, r"got shapes \(4,\) and \(2, 4\), wanted the same"),
        ({"target_logits": torch.zeros(1, 4)}, r"got shapes \(1, 4\) and \(2, 4\)"),
        ({"draft_logits": torch.zeros(2, 3)}, "^draft_logits: got 3 tokens, wanted 4"),
        ({"draft_logits": np.zeros((2, 4))}, "^draft_logits: got ndarray"),
        ({"temperatures": []}, "^temperatures: got nothing"),
        ({"temperatures": [-1.0]}, "^temperature: got -1.0"),
        ({"num_drafts": []}, "^num_drafts: got nothing"),
        ({"num_drafts": [2, 0]}, "^num_drafts: got 0"),
        ({"draft_logits": torch.tensor([[0.0] * 4, [np.nan] * 4])}, "got a row 1 that gives no"),
    ],
)
def test_bad_arguments(change: dict, told: str) -> None:
    fine = {
        "target_logits": torch.zeros(2, 4),
        "draft_logits": torch.zeros(2, 4),
        "temperatures": [0.5, 1.0],
        "num_drafts": [1],
    }
    with pytest.raises(ValueError, match=told):
        measure_logits(**{**fine, **change})


# ---------------------------------------------------------------- two models


@pytest.mark.parametrize("mode", ["samples", "text"])
def test_a_run_gives_what_collecting_and_measuring_gives(
    mode: str,
    tiny,  # noqa: F811
    prompts,  # noqa: F811
    tmp_path,
) -> None:
    draft = skip_layers(tiny, [1, 3])
    dataset = collect(tiny, draft, prompts, tmp_path, mode=mode, progress=False, **OPTIONS)
    want = by_numpy(dataset, (1, 2, 3))
    tables = list(
        device_rates(
            tiny,
            draft,
            prompts,
            temperatures=TEMPERATURES,
            num_drafts=(1, 2, 3),
            mode=mode,
            **OPTIONS,
        )
    )
    assert len(tables) == 4
    got = pl.concat(tables)
    assert got.schema == SCHEMA
    assert_same_rows(got, want, 1e-6)
    where = ["prompt_id", "domain", "position"]
    assert got.sort(KEYS).select(where).equals(want.sort(KEYS).select(where))
    # At temperature 0 a rate is 0 or 1, but for rounding.
    means = ["optimal", "rate", "gap", "positions", "prompts", "undefined"]
    ours, theirs = (summarise(table.sort(KEYS)).select(means) for table in (got, want))
    np.testing.assert_allclose(ours.to_numpy(), theirs.to_numpy(), rtol=0, atol=1e-6)


def test_a_draft_without_a_device(tiny, prompts, tmp_path) -> None:  # noqa: F811
    corpus = [tiny.tokenizer(f"{p.text} {p.answer}").input_ids for p in prompts]
    draft = NGramDraft(NGram.fit(corpus, tiny.token_count, 2), tiny.tokenizer)
    want = by_numpy(collect(tiny, draft, prompts, tmp_path, progress=False, **OPTIONS), (2,))
    tables = device_rates(
        tiny, draft, prompts, temperatures=TEMPERATURES, num_drafts=(2,), **OPTIONS
    )
    assert_same_rows(pl.concat(tables), want, 1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompts": []}, "at least one"),
        ({"mode": "dream"}, "mode"),
        ({"batch_size": 0}, "batch_size"),
        ({"sampling_temperature": -1.0}, "temperature"),
        ({"max_new_tokens": 125}, "more than the 128"),
    ],
)
def test_a_bad_run_is_refused_before_it_begins(change, told, tiny, prompts) -> None:  # noqa: F811
    arguments = {"prompts": prompts, **OPTIONS, **change}
    with pytest.raises(ValueError, match=told):
        device_rates(tiny, skip_layers(tiny, [1]), **arguments)


def test_logits_that_are_no_numbers_are_an_error(tiny, prompts) -> None:  # noqa: F811
    draft = skip_layers(tiny, [1])
    with torch.no_grad():
        tiny.model.model.layers[1].mlp.down_proj.weight.fill_(torch.nan)
    with pytest.raises(HarnessError, match="tiny gave logits that are not numbers"):
        next(device_rates(tiny, draft, prompts, mode="text", **OPTIONS))
