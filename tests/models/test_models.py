import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from models.conftest import save_tiny
from otmd.models import load_target
from otmd.models.language_models import sample_token
from otmd.models.packing import pack_weights


def rngs(*seeds):
    return [np.random.default_rng(seed) for seed in seeds]


def test_rows_are_parts_of_the_same_logits(tiny):
    ids = [3, 4, 5, 6, 7]
    whole = tiny.logits(ids)
    assert whole.shape == (5, 62)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(tiny.logits(ids, rows=[1, 4]), whole[[1, 4]], atol=1e-5)


def test_what_is_drawn_for_one_prompt_does_not_hang_on_the_others(tiny):
    alone = tiny.generate([[8, 9]], 10, rngs=rngs(5))[0]
    together = tiny.generate([[2, 3, 4, 5, 6], [8, 9]], 10, rngs=rngs(4, 5))[1]
    assert alone == together
    assert alone != tiny.generate([[8, 9]], 10, rngs=rngs(6))[0]


def test_sequences_end_with_the_stop_token(tiny):
    tiny.tokenizer.eos_token = "w7"
    stop = tiny.tokenizer.eos_token_id
    assert stop in tiny.stop_tokens
    drawn = tiny.generate([[2, 3]] * 8, 60, temperature=2.0, rngs=rngs(*range(8)))
    stops = [[t for t in tokens if t in tiny.stop_tokens] for tokens in drawn]
    assert any(stops)
    for tokens, seen in zip(drawn, stops, strict=True):
        assert seen == ([tokens[-1]] if len(tokens) < 60 else seen[:1])


def test_a_token_without_mass_is_never_drawn():
    def draw(logits, temperature, number):
        rng = SimpleNamespace(random=lambda size: np.full(size, number))
        return sample_token(np.array(logits), temperature, rng)

    logits = [-np.inf, 0.0, 0.0, -np.inf]
    assert [draw(logits, 0.0, 0.0), draw(logits, 1.0, 0.0), draw(logits, 1.0, 1 - 2**-53)] == [
        1,
        1,
        2,
    ]
    # 1/(1 + e) = .269.
    assert [draw([0.0, 2.0], 2.0, number) for number in (0.26, 0.27)] == [0, 1]


def test_a_local_folder_is_loaded_and_named_by_its_hash(tmp_path, tiny):
    save_tiny(tmp_path)
    loaded = load_target(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(loaded.logits([3, 4, 5]), tiny.logits([3, 4, 5]))
    assert loaded.revision.startswith("sha256:")
    assert loaded.revision == load_target(str(tmp_path), device="cpu").revision
    assert "cpu, float32" in loaded.backend
    half = load_target(str(tmp_path), device="cpu", dtype="bfloat16")
    assert "bfloat16" in half.backend
    assert half.logits([3]).dtype == np.float32


@pytest.mark.slow
def test_a_hub_name_is_recorded_with_its_commit(tmp_path):
    """The hub's cache is laid out here, and read offline by another process."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    save_tiny(snapshot)
    code = "import otmd.models as h; print(h.load_target('someone/tiny', device='cpu').revision)"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"commit:{commit}"


def test_a_hub_name_that_cannot_be_reached(monkeypatch):
    unreachable = Mock(side_effect=OSError("no connection\nand more"))
    monkeypatch.setattr("transformers.utils.hub.cached_file", unreachable)
    with pytest.raises(ValueError, match=r"no model 'someone/nothing'.*\(no connection and more\)"):
        load_target("someone/nothing", device="cpu")


needs_onednn = pytest.mark.skipif(
    not __import__("torch").backends.mkldnn.is_available(), reason="torch has no oneDNN here"
)
TEXT = [3, 4, 5, 6, 20, 9]


@needs_onednn
def test_packed_weights_give_the_same_logits_but_for_rounding(tiny):
    before = tiny.logits(TEXT)
    packed = pack_weights(tiny)
    for length in range(1, len(TEXT) + 1):
        plain, own = tiny.logits(TEXT[:length]), packed.logits(TEXT[:length])
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(tiny.logits(TEXT), before)
    kinds = {type(module).__name__ for module in packed.model.modules()}
    assert "PackedLinear" in kinds
    assert "Linear" not in kinds
    assert (packed.vocab_size, packed.revision) == (tiny.vocab_size, tiny.revision)


def test_importing_and_opening_need_no_torch(tmp_path):
    code = (
        "import sys, numpy as np, otmd.models as h\n"
        "assert not {'torch', 'transformers', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "np.savez(sys.argv[1], target_logits=np.ones((1, 2)), draft_logits=np.ones((1, 2)))\n"
        "h.open_dataset(sys.argv[1]).arrays([0])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "dump.npz")], check=True)
