from pathlib import Path

import polars as pl
import pytest
from toy_dump import write_dump

from otmd.models import Dataset, open_dataset
from otmd.probabilities import Processing
from otmd.study import measure


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dump(tmp_path_factory.mktemp("dump") / "toy")


@pytest.fixture(scope="session")
def dataset(dump: Path) -> Dataset:
    return open_dataset(dump)


@pytest.fixture(scope="session")
def table(dataset: Dataset) -> pl.DataFrame:
    steps = [Processing(0.6), Processing(), Processing(top_k=3)]
    return measure(dataset, processing=steps, workers=1)
