import gzip
import json

import pytest

from otmd.models import Prompt, load_prompts, prompts
from otmd.models.prompts import passages

BOOK = (
    "front matter\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\nIN THE YEAR 2889.\n\n"
    + "\n\n".join(" ".join(f"word{i}-{j}" for j in range(80)) for i in range(6))
    + "\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nlicence"
)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Files like those of the default packages, without a network."""
    code = [
        {"task_id": f"C/{i}", "prompt": f"def f{i}():", "canonical_solution": f" return {i}"}
        for i in range(30)
    ]
    maths = [{"id": f"m{i}", "prompt": "2*3?", "upstream_answer": "It is <<2*3=6>>6"} for i in range(3)]
    chat = [{"question_id": i, "turns": [f"first {i}", "second"]} for i in range(5)]
    texts = {
        "code": gzip.compress("\n".join(map(json.dumps, code)).encode()),
        "maths": "\n".join(map(json.dumps, maths)).encode(),
        "chat": "\n".join(map(json.dumps, chat)).encode(),
        "prose": BOOK.encode(),
    }
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
    homes = {package: tmp_path / name for name, package in prompts.PROMPT_PACKAGES.items()}
    monkeypatch.setattr(prompts, "fetch", lambda package, progress: homes[package])


def test_every_domain(packages):
    prompts = load_prompts(per_domain=2)
    assert [p.domain for p in prompts[::2]] == ["code", "maths", "chat", "prose"]
    assert [p.domain for p in prompts[1::2]] == ["code", "maths", "chat", "prose"]
    by_domain = {p.domain: p for p in prompts}
    assert by_domain["code"].answer == f" return {by_domain['code'].id[2:]}"
    assert by_domain["maths"].answer == "It is 6"
    assert by_domain["chat"].text.startswith("first")
    assert by_domain["chat"].answer is None
    prose = by_domain["prose"]
    assert prose.continuation
    assert "licence" not in f"{prose.text}{prose.answer}"
    assert not by_domain["code"].continuation


def test_the_choice_is_by_seed_and_nested(packages):
    few, more = load_prompts(["code"], 5), load_prompts(["code"], 12)
    assert few == load_prompts(["code"], 5)
    assert few != load_prompts(["code"], 5, seed=1)
    assert set(few) < set(more)
    numbers = [int(p.id[2:]) for p in more]
    assert numbers == sorted(numbers)
    assert len(load_prompts(["code"], None)) == len(load_prompts(["code"], 999)) == 30


def test_passages_are_whole_and_keep_their_spaces():
    text = "\n\n".join(" ".join(f"w{i}x{j}" for j in range(90)) for i in range(5))
    records = passages(text, "d", "stem")
    assert [r.id for r in records] == ["stem/000", "stem/001"]
    first = records[0].text + records[0].answer
    assert first.split() == text.split()[:180]
    assert records[0].answer[0].isspace()
    assert len(records[0].text.split()) == 120


def test_own_jsonl(tmp_path):
    row = {"id": 7, "domain": "law", "prompt": "b", "answer": "c", "continuation": True}
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"text": "a"}}\n{json.dumps(row)}\n\n')
    assert load_prompts([path]) == [
        Prompt("mine/001", "mine", "a", None),
        Prompt("7", "law", "b", "c", True),
    ]
