"""Where prompts come from: one reader a source, each gives records for ``Prompt``."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otmd.harness.catalog import PROMPT_PACKAGES
from otmd.harness.wheels import fetch

PASSAGE_WORDS = 150
Record = dict[str, Any]


def read_code(progress: bool) -> list[Record]:
    """HumanEval: a signature with its docstring, answered by the reference solution."""
    (path,) = fetch(PROMPT_PACKAGES["code"], progress)
    rows = _json_lines(gzip.decompress(path.read_bytes()).decode("utf-8"), path)
    return [
        _record(row["task_id"], "code", row["prompt"], row["canonical_solution"]) for row in rows
    ]


def read_maths(progress: bool) -> list[Record]:
    """GSM8K: a word problem and its worked answer, less the calculator marks ``<<…>>``."""
    (path,) = fetch(PROMPT_PACKAGES["maths"], progress)
    return [
        _record(row["id"], "maths", row["prompt"], re.sub("<<[^>]*>>", "", row["upstream_answer"]))
        for row in _json_lines(path.read_text("utf-8"), path)
    ]


def read_chat(progress: bool) -> list[Record]:
    """MT-bench: the first turn of each conversation; it has no answers."""
    (path,) = fetch(PROMPT_PACKAGES["chat"], progress)
    return [
        _record(f"mt-bench/{row['question_id']}", "chat", row["turns"][0], None)
        for row in _json_lines(path.read_text("utf-8"), path)
    ]


def read_prose(progress: bool) -> list[Record]:
    """Project Gutenberg: the body of the book, in passages that are continued."""
    (path,) = fetch(PROMPT_PACKAGES["prose"], progress)
    body = re.split(r"\*\*\* (?:START|END) OF THE PROJECT GUTENBERG .*", path.read_text("utf-8"))[1]
    story = body.split("IN THE YEAR 2889.\n")[-1]  # what comes before is a title and notes
    return passages(story, "prose", "gutenberg-19362")


READERS: dict[str, Callable[[bool], list[Record]]] = {
    "code": read_code,
    "maths": read_maths,
    "chat": read_chat,
    "prose": read_prose,
}


def read_user_file(path: Path) -> list[Record]:
    """Read a user's ``.jsonl`` or ``.txt`` file.

    Raises
    ------
    ValueError
        If the ending is another, a line is not a JSON object with a text, or nothing is in it.
    """
    if path.suffix == ".jsonl":
        rows = _json_lines(path.read_text("utf-8"), path)
        records = [_user_record(row, path, number) for number, row in enumerate(rows, 1)]
    elif path.suffix == ".txt":
        records = passages(path.read_text("utf-8"), path.stem, path.stem)
    else:
        raise ValueError(f"{path}: prompts are read from .jsonl or .txt files")
    if not records:
        raise ValueError(f"{path} holds no prompts")
    return records


def passages(text: str, domain: str, stem: str) -> list[Record]:
    """Cut a text into passages of whole paragraphs, each of at least 150 words.

    The first two thirds of a passage are the prompt, the rest is the answer; what is left at
    the end and is shorter than a passage is dropped, unless it is all there is.
    """
    paragraphs = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    joined: list[str] = []
    current = ""
    for paragraph in filter(None, paragraphs):
        current = f"{current}\n\n{paragraph}" if current else paragraph
        if len(current.split()) >= PASSAGE_WORDS:
            joined.append(current)
            current = ""
    if current and not joined:
        joined.append(current)
    records = []
    for number, passage in enumerate(joined):
        gaps = [gap.start() for gap in re.finditer(r"(?<=\S)\s+(?=\S)", passage)]
        cut = gaps[len(gaps) * 2 // 3] if gaps else len(passage)
        answer = passage[cut:] or None
        records.append(_record(f"{stem}/{number:03}", domain, passage[:cut], answer, True))
    return records


def _record(
    id: str, domain: str, text: str, answer: str | None, continuation: bool = False
) -> Record:
    return {
        "id": id,
        "domain": domain,
        "text": text,
        "answer": answer,
        "continuation": continuation,
    }


def _json_lines(text: str, path: Path) -> list[Record]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: wanted a JSON object, got {line[:40]!r}")
        rows.append(row)
    return rows


def _user_record(row: Record, path: Path, number: int) -> Record:
    text = row.get("text", row.get("prompt"))
    if not isinstance(text, str) or not text:
        raise ValueError(f"{path}, record {number}: wanted a string under 'text' (or 'prompt')")
    answer = row.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise ValueError(f"{path}, record {number}: 'answer' must be a string, got {answer!r}")
    return _record(
        str(row.get("id", f"{path.stem}/{number:03}")),
        str(row.get("domain", path.stem)),
        text,
        answer,
        bool(row.get("continuation", False)),
    )
