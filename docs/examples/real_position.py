"""Write ``real_position.npz``, the position of the tutorial: both models' logits after a few words.

python docs/examples/real_position.py
"""

from pathlib import Path

import numpy as np

from otmd.models import load_draft, load_target

TEXT = "In the morning the farmer went to the"
NAMED = 12


def main() -> None:
    """Run the default model and the same without three of its layers."""
    target = load_target("default")
    draft = load_draft("skip:13,15,17", target)
    prompt = target.tokenizer.encode(TEXT)
    logits = {
        f"{name}_logits": model.logits(prompt, [len(prompt) - 1])[0].astype(np.float16)
        for name, model in (("target", target), ("draft", draft))
    }
    likeliest = np.unique([np.argsort(-own)[:NAMED] for own in logits.values()])
    words = [target.tokenizer.decode([token]).strip() for token in likeliest]
    path = Path(__file__).with_suffix(".npz")
    np.savez_compressed(path, text=TEXT, word_ids=likeliest, words=words, **logits)


if __name__ == "__main__":
    main()
