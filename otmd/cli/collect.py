"""``otmd collect``: run two models over prompts and store their logits."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts.types import NonNegativeFloat

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import PositiveInt

_QUOTA = "quota:"
EXAMPLES = """
otmd collect runs/mine --draft skip:13,15,17 --per-domain 8
otmd collect runs/qwen --target Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B --prompts code,chat
otmd collect runs/texts --consecutive 48 --per-domain 8
otmd collect runs/paths --consecutive 48 --per-domain 8 --paths 10
otmd collect runs/trees --consecutive 48 --per-domain 8 --trees 2x1x1x1x1x1x1x1,quota:2x2x2x2x2x2x2x2
otmd collect --output runs/own --prompts questions.jsonl --mode text --draft ngram"""


def collect(
    output: Annotated[Path, o.RUN],
    *,
    target: o.Target = "default",
    draft: o.Draft = "skip:13,15,17",
    prompts: o.Prompts = "code,maths,chat,prose",
    per_domain: o.PerDomain = 16,
    positions: o.Positions = 6,
    mode: Annotated[Literal["samples", "text"], o.SAMPLING] = "samples",
    temperature: Annotated[NonNegativeFloat, o.SAMPLING] = 1.0,
    max_new_tokens: o.MaxNewTokens = 32,
    consecutive: Annotated[PositiveInt | None, o.SAMPLING] = None,
    paths: PositiveInt | None = None,
    path_length: PositiveInt = 6,
    trees: str | None = None,
    trees_every: PositiveInt = 8,
    dtype: Annotated[Literal["float32", "float16"], o.RUN] = "float32",
    seed: o.Seed = 0,
    batch_size: Annotated[PositiveInt, o.RUN] = 8,
    device: o.Device = None,
    model_dtype: o.ModelDtype = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run target and draft over prompts and store their raw next-token logits.

    If a run is interrupted, the same command continues it.

    Parameters
    ----------
    output : Path
        The folder for the dataset.
    mode : str
        samples: positions of answers that the target samples; text: of the prompts' own answers.
    temperature : float
        For the answers that the target samples. The stored logits are always raw.
    consecutive : int
        Sample answers of this many tokens and store every position of them, as `otmd plan` needs it; takes
        the place of --positions and --max-new-tokens.
    paths : int
        Also store the draft's most likely paths after every position, as EAGLE-2 grows them, this many a
        level (EAGLE has 10, SGLang 4), so that `otmd plan` ranks such trees. Takes a few times as long.
    path_length : int
        How many levels these paths have.
    trees : str
        Comma-separated shapes, such as 2x1x1x1,4x2x1: the drafts at a node, by level; or quota:2x2x2x2, an
        adaptive tree with these numbers of drafts, level by level. Also draw a tree of each shape from the
        draft at some positions, in strata, and store how many tokens layer verification and other rules yield
        on it, so that `otmd plan` ranks layer verification. Adaptive trees are compared with a fixed one.
    trees_every : int
        At every so many of a prompt's positions trees are drawn.
    dtype : str
        The type in which logits are stored: float32 or float16.
    batch_size : int
        How many prompts the target answers together.
    """
    from otmd.models import collect as run
    from otmd.models import load_prompts

    shapes, quotas = _shapes(trees) if trees else ([], [])
    show = not (quiet or json_output)
    if consecutive is not None:
        # If an answer is no longer than the number of positions, all of it is stored.
        positions = max_new_tokens = consecutive
    with o.kept_when_stopped(lambda: f"What was finished is kept in {output}"):
        chosen = load_prompts(o.split("--prompts", prompts), per_domain, seed, progress=show)
        dataset = run(
            target,
            draft,
            chosen,
            output,
            positions_per_prompt=positions,
            mode=mode,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            dtype=dtype,
            seed=seed,
            batch_size=batch_size,
            paths=paths,
            path_length=path_length,
            trees=shapes,
            quotas=quotas,
            trees_every=trees_every,
            device=device,
            model_dtype=model_dtype,
            overwrite=overwrite,
            progress=show,
        )
    if json_output:
        counts = {"positions": len(dataset), "prompts": len(chosen)}
        print(json.dumps({"dataset": str(output), **counts, "vocab_size": dataset.vocab_size}))
    else:
        print(
            f"{output}: {len(dataset)} positions of {len(chosen)} prompts, V = "
            f"{dataset.vocab_size}. Next: otmd {'plan' if consecutive else 'measure'} {output}"
        )


def _shapes(text: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Read ``2x1x1,quota:2x2`` as shapes, the drafts at a node by level, and quotas, those of each level."""
    shapes, quotas = [], []
    for piece in o.split("--trees", text):
        counts = piece.removeprefix(_QUOTA).split("x")
        if not all(count.isascii() and count.isdigit() and len(count) < 4 for count in counts):
            expected = "shapes such as 2x1x1,4x2x1 or quota:2x2x2"
            raise UsageError(f"--trees: got {piece!r}, expected {expected}")
        of_kind = quotas if piece.startswith(_QUOTA) else shapes
        of_kind.append(tuple(map(int, counts)))
    return shapes, quotas
