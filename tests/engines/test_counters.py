"""Counters of engines: all formats of one run give the same rates, and bad files are refused."""

from __future__ import annotations

import json

import pytest

from otmd.cli import main
from otmd.engines import read_counts

# Accepted drafts of ten steps with three drafts each.
ACCEPTED = [0, 0, 1, 1, 1, 2, 3, 3, 0, 3]
AT_LEAST = [7, 4, 3]
PER_POSITION = "\n".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a",position="{k}"}} {n}.0'
    for k, n in enumerate(AT_LEAST)
)
VLLM = f"""# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a"}} 10.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="a"}} 30.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="a"}} 14.0
{PER_POSITION}
vllm:generation_tokens_total{{engine="0",model_name="a"}} 99.0
"""
HISTOGRAM = [ACCEPTED.count(k) for k in range(4)]
FILES = {
    "vLLM": VLLM,
    "SGLang": "".join(
        json.dumps(
            {"text": "", "meta_info": {"spec_accept_histogram": h, "spec_draft_token_num": n}}
        )
        + "\n"
        for h, n in (([1, 2], 9), ([2, 1, 1, 3], 21))
    ),
    "llama.cpp": json.dumps(
        {"timings": {"draft_n": 30, "draft_n_accepted": 14, "predicted_n": 24}}
    ),
    "Spec-Bench": json.dumps(
        {"question_id": 1, "choices": [{"accept_lengths": [k + 1 for k in ACCEPTED]}]}
    ),
}


@pytest.mark.parametrize("source", FILES)
def test_every_format_of_one_run_gives_its_rates(source, tmp_path):
    path = tmp_path / "counts"
    path.write_text(FILES[source])
    counts = read_counts(path)
    assert counts.source == source
    assert counts.tokens_per_step == pytest.approx(2.4)
    assert counts.accepted_per_step == pytest.approx(1.4)
    if source != "Spec-Bench":
        assert counts.draft_acceptance_rate == pytest.approx(14 / 30)
    if source != "llama.cpp":
        assert counts.per_step == pytest.approx([0.7, 0.4, 0.3])
        assert counts.conditional == pytest.approx([0.7, 4 / 7, 0.75])
        assert counts.histogram == pytest.approx([x / 10 for x in HISTOGRAM])


def test_two_engines_of_vllm_are_added(tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM + VLLM.replace('engine="0"', 'engine="1"'))
    counts = read_counts(path)
    assert (counts.steps, counts.accepted, counts.at_least) == (20, 28, (14, 8, 6))


def test_lengths_without_the_extra_token(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"accept_lengths": ACCEPTED}))
    with pytest.raises(ValueError, match="accept_lengths: got 0, expected lengths of at least 1"):
        read_counts(path)
    assert read_counts(path, without_extra_token=True).tokens_per_step == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("{}", "expected metrics of vLLM"),
        ('{"a": 1}\n{', "line 2 is no JSON"),
        (VLLM.replace("14.0", "31.0"), "contradict"),
        (VLLM.replace("10.0", "0.0"), "no step with drafts"),
    ],
)
def test_bad_files_are_refused(text, message, tmp_path):
    path = tmp_path / "counts"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_counts(path)


def test_the_command_prints_every_definition(tmp_path, capsys):
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM)
    assert main(["rates", str(path)]) == 0
    text = capsys.readouterr().out
    assert "2.4000" in text
    assert "0.5714" in text
    assert main(["rates", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_step"] == pytest.approx(2.4)
