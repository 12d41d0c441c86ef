"""``otmd collect``: run two models over prompts and store their logits."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts.types import NonNegativeFloat

from otmd.cli import options as o
from otmd.cli.options import PositiveInt, about

EXAMPLES = """
otmd collect runs/mine --draft skip:13,15,17 --per-domain 8
otmd collect runs/qwen --target Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B --prompts code,chat
otmd collect runs/texts --positions 48 --max-new-tokens 48 --per-domain 8
otmd collect --output runs/own --prompts questions.jsonl --mode text --draft ngram"""


def collect(
    output: Annotated[Path, o.RUN, about("The folder for the dataset.")],
    *,
    target: o.Target = "default",
    draft: o.Draft = "skip:13,15,17",
    prompts: o.Prompts = "code,maths,chat,prose",
    per_domain: o.PerDomain = 16,
    positions: o.Positions = 6,
    mode: Annotated[Literal["samples", "text"], o.INPUT, about("Of the target, or of the file.")] = "samples",
    temperature: Annotated[NonNegativeFloat, o.INPUT, about("Of the answers.")] = 1.0,
    max_new_tokens: o.MaxNewTokens = 32,
    dtype: Annotated[Literal["float32", "float16"], o.RARE, about("Of stored logits.")] = "float32",
    seed: o.Seed = 0,
    batch_size: Annotated[PositiveInt, o.RARE, about("Prompts answered together.")] = 8,
    device: o.Device = None,
    model_dtype: o.ModelDtype = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Run target and draft over prompts and store their raw next-token logits.

    If a run is interrupted, the same command continues it.
    """
    from otmd import models

    show = not (quiet or json_output)
    chosen = models.load_prompts(o.split("--prompts", prompts), per_domain, seed, progress=show)
    dataset = models.collect(
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
            f"{dataset.vocab_size}. Next: otmd measure {output}"
        )
