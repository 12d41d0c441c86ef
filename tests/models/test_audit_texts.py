import json

import numpy as np

import otmd.models
from otmd.cli import main


def test_the_command_line_audits_texts_with_the_default_model(tiny, tmp_path, capsys, monkeypatch):
    prompts = [[1, 2, 3]] * 150
    rngs = [np.random.default_rng([0, i]) for i in range(150)]
    outputs = tiny.generate(prompts, 6, 0.8, rngs=rngs)
    path = tmp_path / "texts.jsonl"
    rows = [{"prompt_tokens": [1, 2, 3], "output_tokens": output} for output in outputs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(otmd.models, "load_target", lambda name: tiny)
    arguments = ["audit", str(path), "--oracle", "tiny", "--bias", "0.2"]
    assert main([*arguments, "--target-temperature", "0.8"]) == 0
    assert capsys.readouterr().out.startswith("PASS")
    assert main([*arguments, "--target-temperature", "0.3"]) == 3
    assert main([*arguments, "--law", "fixed"]) == 2
