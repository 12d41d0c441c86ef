"""Real models: collect next-token distributions, store them, read them again.

Names are loaded when they are used: importing this package imports neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otmd.harness.catalog import DEFAULT_MODEL, PROMPT_PACKAGES
    from otmd.harness.collection import collect
    from otmd.harness.comparison import decode_in_turn
    from otmd.harness.context_ngram import ContextNGram
    from otmd.harness.dataset import Dataset, Position, open_dataset
    from otmd.harness.decoding import Decoded, Speculation, decode
    from otmd.harness.drafts import DEFAULT_DRAFT, Draft, NGramDraft, common_vocabulary, load_draft
    from otmd.harness.errors import DatasetError, FetchError, FolderLockedError, HarnessError
    from otmd.harness.files import cache_folder
    from otmd.harness.layer_skip import skip_layers
    from otmd.harness.loading import load_target
    from otmd.harness.models import LanguageModel
    from otmd.harness.ngram import NGram
    from otmd.harness.packed_weights import can_pack, pack_weights
    from otmd.harness.prompts import DOMAINS, Prompt, load_prompts
    from otmd.harness.wheels import Package, fetch

_HOMES = {
    "catalog": ("DEFAULT_MODEL", "PROMPT_PACKAGES"),
    "collection": ("collect",),
    "comparison": ("decode_in_turn",),
    "context_ngram": ("ContextNGram",),
    "dataset": ("Dataset", "Position", "open_dataset"),
    "decoding": ("Decoded", "Speculation", "decode"),
    "drafts": ("DEFAULT_DRAFT", "Draft", "NGramDraft", "common_vocabulary", "load_draft"),
    "errors": ("DatasetError", "FetchError", "FolderLockedError", "HarnessError"),
    "files": ("cache_folder",),
    "layer_skip": ("skip_layers",),
    "loading": ("load_target",),
    "models": ("LanguageModel",),
    "ngram": ("NGram",),
    "packed_weights": ("can_pack", "pack_weights"),
    "prompts": ("DOMAINS", "Prompt", "load_prompts"),
    "wheels": ("Package", "fetch"),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DEFAULT_DRAFT",
    "DEFAULT_MODEL",
    "DOMAINS",
    "PROMPT_PACKAGES",
    "ContextNGram",
    "Dataset",
    "DatasetError",
    "Decoded",
    "Draft",
    "FetchError",
    "FolderLockedError",
    "HarnessError",
    "LanguageModel",
    "NGram",
    "NGramDraft",
    "Package",
    "Position",
    "Prompt",
    "Speculation",
    "cache_folder",
    "can_pack",
    "collect",
    "common_vocabulary",
    "decode",
    "decode_in_turn",
    "fetch",
    "load_draft",
    "load_prompts",
    "load_target",
    "open_dataset",
    "pack_weights",
    "skip_layers",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
