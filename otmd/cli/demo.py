"""``otmd demo``: all steps from two language models to the table and the figure."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from otmd.cli import options as o
from otmd.cli.options import about
from otmd.storage.files import parse_json, write_atomically

if TYPE_CHECKING:
    import polars as pl

    from otmd.models import Dataset

EXAMPLES = """
otmd demo
otmd demo --temperature 1 --overwrite
otmd demo --output runs/small --per-domain 4 --positions 3"""

# Rates without a closed form are known to 0.1 percentage points at each position, which is less than the
# interval of the mean. A tenth of that would take five times as long.
TOLERANCE = 1e-3
# Trees of two paths, and the most likely 16 tokens. A plan takes 16 steps of each candidate for a prompt; one
# fits into the two minutes of the demo.
TREE_BUDGET, DEPTH = 16, 8
TREE_PROMPTS = 8
FIRST_STEP = "Tokens of the first step after a prompt; `otmd plan` takes more steps. "


def demo(
    *,
    output: Annotated[Path, o.RUN, about("The folder of dataset, results and figures.")] = Path("runs/demo"),
    target: o.Target = "default",
    draft: o.Draft = "skip:13,15,17",
    per_domain: o.PerDomain = 6,
    positions: o.Positions = 6,
    num_drafts: o.NumDrafts = "1-4",
    temperature: o.Temperature = "0.6,1.0",
    workers: o.Workers = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure every verifier and rules for draft trees on a real pair of models, and say what to take.

    Fetches the default model and prompts once into the cache, runs target and draft over prompts
    of code, maths, chat and prose, and measures each verifier against the optimum, and each rule for
    draft trees, which take their first step at temperature 1. A second run reads the stored results.
    """
    from otmd.study import draw_gaps, measure, print_report, recommend, report_json, summarise
    from otmd.study.plan import RESULT
    from otmd.study.ranking import decision, ranking_table
    from otmd.study.run import RESULTS
    from otmd.study.table import wrapped

    ends = [time.monotonic()]
    progress = not (quiet or json_output)
    common: dict[str, Any] = {"workers": workers, "progress": progress, "overwrite": overwrite}
    counts = o.counts("--num-drafts", num_drafts)
    steps = o.NO_CUTS.at_each(temperature)
    sizes = {"target": target, "draft": draft, "per_domain": per_domain, "positions": positions}
    dataset = _dataset(output, sizes, **common)
    ends.append(time.monotonic())
    results = output / "results"
    parquet = results / RESULTS
    options = {"num_drafts": counts, "processing": steps, "tol": TOLERANCE}
    table = measure(dataset, output=results, **options, **common)
    said = recommend(table)
    ends.append(time.monotonic())
    ranked = _ranked_trees(output / "trees", target, draft, **common)
    ends.append(time.monotonic())
    summary = summarise(table)
    figures = [output / "gaps.png", output / "gaps.pdf"]
    draw = partial(draw_gaps, summary, figures, source=f"otmd demo, {parquet}")
    if json_output:
        answer = report_json(summary, str(parquet)) | {"trees": ranked.to_dicts()}
        print(json.dumps(answer | {"figures": [str(path) for path in figures]}, indent=1))
        draw()
        return
    names = [dataset.metadata.get(role, {}).get("name", "?") for role in ("target", "draft")]
    print(
        f"target {names[0]}, draft {names[1]}, V = {dataset.vocab_size}; "
        "positions on the target's own samples at T = 1\n"
    )
    print_report(summary)
    title = f"draft trees of {TREE_BUDGET} tokens, best first"
    print(f"\n{ranking_table(ranked, title, FIRST_STEP)}")
    said.append(f"T = 1, trees of {TREE_BUDGET} tokens: {' '.join(decision(ranked))}")
    # Last, where a terminal shows it.
    print("", *map(wrapped, said), sep="\n\n")
    draw()
    print(f"\nper-position results  {parquet}")
    for path in figures:
        print(f"figure                {path}")
    print(f"logits                {output / 'dataset'}")
    print(f"tokens on trees       {output / 'trees' / RESULT}")
    stages = zip(("models and texts", "rates", "trees"), pairwise(ends), strict=True)
    took = ", ".join(f"{stage} {end - start:.0f} s" for stage, (start, end) in stages)
    print(f"Done in {time.monotonic() - ends[0]:.0f} s: {took}. The same command reads these results.")


def compile_kernels() -> None:
    """Measure distributions of no model: what kernels it compiles is kept on disk."""
    import numpy as np

    from otmd.study import measure

    logits = np.random.default_rng(0).normal(0.0, 3.0, (2, 1, 20_000)).astype(np.float32)
    with TemporaryDirectory() as folder:
        file = Path(folder, "noise.npz")
        np.savez(file, target_logits=logits[0], draft_logits=logits[1])
        measure(file, tol=TOLERANCE, workers=1)


@contextmanager
def _compiling() -> Iterator[None]:
    """Compile kernels in another process, while this one waits for downloads and models."""
    code = f"import {__name__} as demo; demo.compile_kernels()"
    compiler = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        # What it has not compiled by now is compiled where it is needed.
        compiler.kill()
        compiler.wait()


def _dataset(
    folder: Path, sizes: dict[str, Any], workers: int | None, progress: bool, overwrite: bool
) -> "Dataset":
    """Open the dataset of an earlier run, or collect it; only the latter imports torch."""
    import joblib

    from otmd import models
    from otmd.models.prompts import prompt_tokens

    record = folder / "demo.json"
    collected = folder / "dataset"
    stored = None
    if record.exists():
        try:
            stored = parse_json(record.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{record}: cannot be read ({error}); delete it to go on") from error
        if stored != sizes and not overwrite:
            raise ValueError(
                f"output: {folder} holds a demo of {stored}, not {sizes}; give --overwrite to replace it, "
                "or another output"
            )
    if stored == sizes and collected.exists():
        try:
            return models.open_dataset(collected)
        except models.DatasetError as unfinished:
            print(f"collecting again: {unfinished}", file=sys.stderr)
    write_atomically(record, json.dumps(sizes).encode())
    with _compiling():
        prompts = models.load_prompts(per_domain=sizes["per_domain"], progress=progress)
        target = models.load_target(sizes["target"], progress=progress)
        return models.collect(
            target,
            sizes["draft"],
            # Prompts of similar length need little padding.
            sorted(prompts, key=lambda prompt: len(prompt_tokens(target.tokenizer, prompt))),
            collected,
            positions_per_prompt=sizes["positions"],
            workers=workers or joblib.cpu_count(),
            overwrite=overwrite,
            progress=progress,
        )


def _ranked_trees(folder: Path, target: str, draft: str, progress: bool, **options: Any) -> "pl.DataFrame":
    """The tokens of a step of laws and rules."""
    import polars as pl

    from otmd.models import load_prompts
    from otmd.probabilities import Processing
    from otmd.study.plan import candidates, plan_table
    from otmd.study.ranking import rank

    prompts = load_prompts(per_domain=TREE_PROMPTS, progress=progress)
    ways = candidates([TREE_BUDGET], DEPTH, temperature=1.0, widths=[TREE_BUDGET // DEPTH])
    steps = {"starts": [0], "num_steps": 1, "left_out": 0}
    options |= steps | {"progress": progress}
    table = plan_table(target, draft, prompts, folder, ways, Processing(), **options)
    # The title gives the size of the trees, which is the same in all rows.
    return rank(table.with_columns(tree=pl.lit("")))
