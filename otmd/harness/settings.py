"""The numbers a collection run is made with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSettings:
    """The numbers that ``collect`` takes; see there. Checked when made."""

    positions_per_prompt: int
    mode: str
    temperature: float
    max_new_tokens: int
    dtype: str
    seed: int
    batch_size: int

    def __post_init__(self):
        for name in ("positions_per_prompt", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.mode not in {"samples", "text"}:
            raise ValueError(f"mode must be 'samples' or 'text', got {self.mode!r}")
        if self.dtype not in {"float32", "float16"}:
            raise ValueError(f"dtype must be 'float32' or 'float16', got {self.dtype!r}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
