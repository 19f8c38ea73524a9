"""What answers in a model's place, in other processes or on other machines."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from qwenlab.engine.request import Request
from qwenlab.loading import CheckpointError, find_checkpoint, has_tokenizer, stop_ids
from qwenlab.model.config import Config
from qwenlab.text.tokenizer import FILE as TOKENIZER
from qwenlab.text.tokenizer import Tokenizer


class Elsewhere(ABC):
    """The base of `Endpoints` and `RayActors`: of the checkpoint, only what prompts need is loaded.

    Raises whatever `load` raises for the checkpoint.
    """

    def __init__(self, name: str | Path) -> None:
        self.folder = find_checkpoint(name, weights=False)
        if not has_tokenizer(self.folder):
            raise CheckpointError(f"{name}: no {TOKENIZER}, which is needed to make prompts")
        self.config = Config.from_folder(self.folder)
        self.tokenizer = Tokenizer.from_folder(self.folder, vocab_size=self.config.vocab_size)
        self.stop_ids = stop_ids(self.folder, self.config, self.tokenizer)

    @property
    @abstractmethod
    def rows(self) -> int:
        """The requests at once if nobody names a number."""

    @abstractmethod
    def prepare(self, requests: Sequence[Request], strategy: str) -> None:
        """Refuses, before anything is written, what can't be answered."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """What the answers depend on, beside the problems: for a run's settings."""
