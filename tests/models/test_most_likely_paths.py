import numpy as np
import pytest
import reference

from models.conftest import make_ngram
from models.test_dataset import ROW
from otmd.models import DatasetError, LanguageModel, collect, open_dataset
from otmd.models import continuations as own
from otmd.models.dataset import SHARDS, read_shard, write_manifest, write_shard
from otmd.models.variants import skip_layers
from otmd.probabilities import Processing
from otmd.storage.store import Store

TEXT = [3, 4, 5, 6, 3, 4, 5, 7, 3, 4, 9, 9, 3, 4]
WIDTH, LENGTH, VOCAB = 3, 3, 62
NODES = WIDTH + (LENGTH - 1) * WIDTH**2


class Table:
    """A draft whose distributions are those of a function of the tokens."""

    def __init__(self, tokenizer, probs):
        self.tokenizer, self.probs = tokenizer, probs

    def logits(self, token_ids, rows=None):
        with np.errstate(divide="ignore"):
            return np.log(np.array([self.probs(list(token_ids[: row + 1])) for row in rows]))


def wanted(draft, tokens, place, width=WIDTH, length=LENGTH, vocab_size=VOCAB):
    # A language model is computed anew, without a cache. N-gram counts are of the text without the prefix.
    made = own.Recomputed if isinstance(draft, LanguageModel) else own.continuations
    text = made(draft, tokens[:place])

    def probs(prefix):
        return Processing()(text.logits([prefix])[0][:vocab_size]).tolist()

    most = width + (length - 1) * width**2
    return reference.as_rows(reference.likeliest_paths(probs, width, length), most)


def drafts(tiny: LanguageModel):
    return {
        "layers skipped": skip_layers(tiny, [2]),
        "n-gram": make_ngram(tiny),
        "n-gram and its text": make_ngram(tiny, 3),
        "computed anew": Table(tiny.tokenizer, make_ngram(tiny).model.probs),
    }


@pytest.mark.parametrize(
    ("name", "places", "at_once"),
    [
        ("layers skipped", range(4, 14), 9),
        ("layers skipped", [2, 3, 7, 13], 80),
        ("n-gram", [2, 3, 7, 13], 80),
        ("n-gram and its text", range(4, 14), 9),
        ("computed anew", [2, 13], 80),
    ],
)
def test_paths_are_the_drafts_own(tiny, monkeypatch, name, places, at_once) -> None:
    monkeypatch.setattr(own, "AT_ONCE", at_once)
    draft = drafts(tiny)[name]
    found = own.most_likely_along(draft, TEXT, places, (WIDTH, LENGTH, VOCAB))
    assert found.dtype == np.int32
    for place, rows in zip(places, found, strict=True):
        assert rows.tolist() == wanted(draft, TEXT, place)


def test_paths_end_where_nothing_has_mass(tiny) -> None:
    """After an even token, the draft has mass on one token; after an odd one, on two."""

    def probs(tokens):
        q = np.zeros(VOCAB)
        q[[1] if tokens[-1] % 2 == 0 else [2, 3]] = [1.0] if tokens[-1] % 2 == 0 else [0.75, 0.25]
        return q

    draft = Table(tiny.tokenizer, probs)
    (found,) = own.most_likely_along(draft, TEXT, [4], (WIDTH, LENGTH, VOCAB))
    assert found.tolist() == wanted(draft, TEXT, 4)
    # 6, then 1, then 2 or 3, then 1 after 2 and both after 3.
    assert np.count_nonzero(found[:, 1] >= 0) == 6


OPTIONS = {"positions_per_prompt": 6, "max_new_tokens": 6, "batch_size": 2, "progress": False}
PATHS = {"paths": WIDTH, "path_length": LENGTH}


def test_collected_paths_go_with_their_positions(tiny, prompts, tmp_path) -> None:
    draft = skip_layers(tiny, [1, 3])
    dataset = collect(tiny, draft, prompts[:5], tmp_path, **OPTIONS, **PATHS)
    assert (dataset.metadata["paths"], dataset.metadata["path_length"]) == (WIDTH, LENGTH)
    texts = {
        text["prompt_id"]: text["tokens"]
        for shard in sorted(tmp_path.glob("*.safetensors"))
        for text in read_shard(shard).texts
    }
    rows = [0, len(dataset) - 1, 7]
    for row, found in zip(rows, dataset.paths(rows), strict=True):
        place = dataset.positions[row]
        assert found.tolist() == wanted(draft, texts[place.prompt_id], place.position)
    # Paths change nothing else that is stored, and a run without them has other settings.
    bare = collect(tiny, draft, prompts[:5], tmp_path / "bare", **OPTIONS)
    assert bare.paths([0]) is None
    everything = range(len(dataset))
    for one, other in zip(dataset.arrays(everything), bare.arrays(everything), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="paths: stored 3"):
        collect(tiny, draft, prompts[:5], tmp_path, **OPTIONS)


def test_shards_with_other_paths(tmp_path) -> None:
    store = Store(tmp_path, {}, SHARDS)
    logits = {"target_logits": np.zeros((1, 3)), "draft_logits": np.zeros((1, 3))}

    def opened(*paths):
        arrays = [logits | ({} if own is None else {"draft_paths": own}) for own in paths]
        shards = [read_shard(write_shard(store, i, own, [ROW], [])) for i, own in enumerate(arrays)]
        write_manifest(tmp_path, shards, {})
        return open_dataset(tmp_path)

    (tmp_path / "collect.json").write_text("{}")
    nodes = np.array([[[-1, 2], [0, 1]]], np.int32)
    assert opened(nodes, nodes).paths([1]).tolist() == nodes.tolist()
    for other in (None, nodes[:, :1]):
        with pytest.raises(DatasetError, match="several vocabularies or paths"):
            opened(nodes, other)
    for wrong in (nodes[..., 0], nodes.astype(float), np.repeat(nodes, 2, axis=0)):
        with pytest.raises(DatasetError, match="expected whole numbers"):
            opened(wrong)
    with pytest.raises(DatasetError, match="parents before their children"):
        opened(nodes[:, ::-1].copy())
