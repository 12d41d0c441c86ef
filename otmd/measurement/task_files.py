"""Tasks of a sweep as they stand in a file."""

import tomllib
from itertools import product
from pathlib import Path
from typing import Any


def read_tasks(path: str | Path) -> list[dict[str, Any]]:
    """Read the tasks of a TOML file: every combination of the lists of each table ``[[tasks]]``.

    Parameters
    ----------
    path : str or Path
        The file. A table's values are lists, or single values for all of its tasks.

    Returns
    -------
    list of dict
        Tasks that occur twice are there once.

    Raises
    ------
    ValueError
        If the file is no TOML or holds no tasks.
    """
    try:
        spec = tomllib.loads(Path(path).read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: cannot be read as TOML ({error})") from error
    tables = spec.get("tasks")
    if not isinstance(tables, list) or not tables or set(spec) != {"tasks"}:
        raise ValueError(f"{path}: got {sorted(spec)}, wanted tables [[tasks]] and nothing else")
    tasks = []
    for table in tables:
        lists = [value if isinstance(value, list) else [value] for value in table.values()]
        tasks += [dict(zip(table, values, strict=True)) for values in product(*lists)]
    return [task for i, task in enumerate(tasks) if task not in tasks[:i]]
