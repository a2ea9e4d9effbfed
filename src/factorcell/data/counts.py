"""Counted texts: how often each was seen, as a run folder keeps them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

from factorcell import files
from factorcell.config import DataConfig, UserError
from factorcell.data.tables import open_table
from factorcell.data.tokenizer import splitter

POPULARITY = "popularity.jsonl"  # in a run folder: the counted texts of training


@dataclass(frozen=True)
class TextCounts:
    """How often each of the texts that are `kept` was seen (NFC, not empty), of `total` texts there were."""

    kept: Mapping[str, int]
    total: int

    @classmethod
    def of(cls, texts: Iterable[str], min_count: int) -> "TextCounts":
        """Count `texts`; those seen less than `min_count` times are omitted."""
        seen = Counter(normalize("NFC", text) for text in texts)
        return cls({text: count for text, count in seen.items() if count >= min_count and text}, seen.total())

    @classmethod
    def of_table(cls, source: Any, config: DataConfig) -> "TextCounts":
        """Count the texts of a table as a model of `config` reads them: it may have lower-cased them."""
        split = splitter(config)
        texts = (text for chunk in open_table(source).chunks([config.text]) for text in chunk[config.text])
        return cls.of(("".join(split(text)) for text in texts), config.min_text_count)

    def save(self, path: Path) -> None:
        """A row of JSON for every text, by alphabet, after one with the total."""
        rows = ({"text": text, "count": count} for text, count in sorted(self.kept.items()))
        files.write_rows(path, [{"total": self.total}, *rows])

    @classmethod
    def open(cls, path: Path) -> "TextCounts":
        """What `save` wrote, or a `UserError`."""
        rows = files.read_rows(path)
        try:
            return cls({str(row["text"]): int(row["count"]) for row in rows[1:]}, int(rows[0]["total"]))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a file of counted texts ({error!r})") from None


UNITS = ("char", "grapheme")
