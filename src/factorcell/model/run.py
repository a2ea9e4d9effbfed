"""One folder, one experiment: config, schema, tokenizer, weights, log and card. It opens without its training data.

config.json   schema.json   vocabulary.txt (or other files of its tokenizer)   weights.safetensors
checkpoint.safetensors   log.jsonl   README.md

What decides a score or a suggestion is listed in digests.json, so that a run whose files were altered does not open.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import files, folders
from factorcell.config import FORMAT, PRECISIONS, Config, UserError, choose
from factorcell.data.cache import prepare
from factorcell.data.chunks import UnknownKindError
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.rows import has_rows, to_rows
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import Tokenizer, load_tokenizer, tokenizer_files
from factorcell.model import sizes
from factorcell.model.devices import find_device
from factorcell.model.kernels import library
from factorcell.model.language_model import LanguageModel
from factorcell.model.precision import AUTO, choose_precision, measure_speedup

TOKENS = 20_000  # targets scored at once
PROBED = 4, 32  # texts and tokens by which the faster precision is found
FINGERPRINT = 16  # bytes of the checksum of the weights, by which a run is known

# Files of the manifest: they decide what the run says and have no checksum of their own, unlike tensors.
LISTED = (
    *("config.json", "schema.json", "training.json"),
    *("popularity.jsonl", "online.json", "blend.json", "canaries.json"),
)  # and the files of its tokenizer

UNIGRAMS = "unigrams.safetensors"  # how often each token was a target of training
CHECKPOINT = "checkpoint.safetensors"  # what a training goes on from


def initial_files() -> tuple[str, ...]:
    """Return the names of the files of a training that has learned nothing yet."""
    return ("config.json", "schema.json", *tokenizer_files(), "start.safetensors", "log.jsonl")


class Run:
    """A model with all that it needs to read new texts. `Run.open(folder).score([{"text": ..., "stars": 5}])`.

    `fingerprint` tells its weights from those of other runs, wherever the folder lies; empty until they are loaded.
    `gain` is how many times as fast it was found to score by bfloat16, 1 where nobody looked.
    """

    def __init__(self, folder: str | Path, config: Config, tokenizer: Tokenizer, schema: ContextSchema) -> None:
        self.folder, self.config, self.tokenizer, self.schema = Path(folder), config, tokenizer, schema
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.training.seed)  # of the processor; no other is touched
            sizes.check_memory(config, len(tokenizer), schema)
            self.model = LanguageModel(config, len(tokenizer), schema, tokenizer.specials)
        self.model.eval()
        self.precision, self.bfloat16_speedup, self.fingerprint = "float32", 1.0, b""

    def __repr__(self) -> str:
        size, columns = self.model.parameter_count(), ", ".join(v.name for v in self.schema.variables) or "no context"
        return f"Run({str(self.folder)!r}: {self.config.tokenizer.kind}, {columns}, {size:,} parameters)"

    @classmethod
    def create(cls, folder: str | Path, config: Config, tokenizer: Tokenizer, schema: ContextSchema) -> "Run":
        """A new folder with an untrained model. `UserError` where the folder exists and is not empty."""
        folder = Path(folder)
        sizes.check_memory(config, len(tokenizer), schema, trained=True)
        files.new_folder(folder, resumable=True)
        run = cls(folder, config, tokenizer, schema)
        files.create_manifest(folder, (*LISTED, *tokenizer.FILES))
        files.write_versioned(folder / "config.json", config.to_dict(), FORMAT)
        files.write_json(folder / "schema.json", schema.to_dict())
        tokenizer.save(folder)
        return run

    @classmethod
    def open(
        cls, folder: str | Path, *, trained: bool = True, device: str = "cpu", precision: str = "float32"
    ) -> "Run":
        """The run in `folder` with its best weights, or (not `trained`) without any, to go on training.

        `device` is cpu, cuda or auto: a GPU if there is one. It scores with products of numbers of `precision`; auto:
        of those that are faster for this model here, which takes tens of milliseconds to find out.
        """
        folder = Path(folder)
        config = read_config(folder)
        schema, tokenizer = ContextSchema.load(folder / "schema.json"), load_tokenizer(config, folder)
        if trained:
            sizes.check_header(folder / "weights.safetensors", sizes.tensor_shapes(config, len(tokenizer), schema))
        run = cls(folder, config, tokenizer, schema).to(find_device(device))
        choose("precision", precision, PRECISIONS)
        if trained:
            run.load_weights()
        run.precision = run.faster() if precision == AUTO and trained else precision
        return run

    def faster(self) -> str:
        """The precision in which it scores faster here: that of made-up texts."""
        random = np.random.default_rng(0)
        drawn = random.integers(len(self.tokenizer), size=PROBED)
        texts = [self.tokenizer.join(self.tokenizer.decode(line)) for line in drawn]
        probe = self.read(texts, [{}] * len(texts))

        def score(name: str) -> None:
            self.precision = name
            self.nats(probe)

        before = self.precision
        self.bfloat16_speedup = measure_speedup(score, self.device)
        self.precision = before
        return choose_precision(self.bfloat16_speedup)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embedding.device

    def to(self, device: torch.device) -> "Run":
        """This run, its model moved to `device`."""
        self.model.to(device)
        return self

    def load_weights(self) -> None:
        """Take the best weights from the folder. From here on the model is read, not trained."""
        path = self.folder / "weights.safetensors"
        begun = self.log_path.exists() or (self.folder / CHECKPOINT).exists()
        if begun and not (path.exists() or (self.folder / "training.json").exists()):
            early = "its training stopped before its first evaluation"
            raise UserError(f"{self.folder}: {early}; the command that trained it goes on with --resume")
        tensors, _, checksum = files.load_checked(path)
        state = self.model.saved_tensors()
        expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            raise UserError(f"{path}: does not belong to this config, schema and vocabulary")
        if wrong := [name for name, tensor in tensors.items() if not tensor.sum().isfinite()]:
            raise UserError(f"{path}: {wrong[0]} holds what is no finite number; it must be trained anew")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(tensors[name])
        self.model.requires_grad_(False)
        self.fingerprint = checksum[:FINGERPRINT]

    def save_weights(self, facts: dict[str, Any]) -> None:
        """Put the model's weights into the folder, with `facts` about them."""
        files.save_tensors(self.folder / "weights.safetensors", self.model.saved_tensors(), facts)

    def save_unigram_counts(self, counts: NDArray[np.int64]) -> None:
        """Keep in the folder how often each token was a target of training (V,)."""
        files.save_tensors(self.folder / UNIGRAMS, {"counts": torch.from_numpy(counts)}, {})

    def unigram_counts(self) -> Tensor:
        """How often each token was a target of training (V,), 64-bit; `UserError` where the folder does not say."""
        path = self.folder / UNIGRAMS
        if not path.exists():
            raise UserError(f"{path}: there is no such file; training writes it at its end")
        tensors, _ = files.load_tensors(path)
        counts = tensors.get("counts", torch.zeros(0))
        if counts.dtype != torch.int64 or counts.shape != (len(self.tokenizer),) or bool((counts < 0).any()):
            raise UserError(f"{path}: expected a count for each token")
        return counts

    @property
    def log_path(self) -> Path:
        """The JSON lines that training wrote."""
        return self.folder / "log.jsonl"

    def log(self) -> list[dict[str, Any]]:
        """The rows that training wrote."""
        return files.read_rows(self.log_path)

    def best_evaluation(self) -> dict[str, Any] | None:
        """The row of the log whose weights are kept, the best of its training; none before the first evaluation."""
        kept: dict[str, Any] | None = None
        for row in self.log():
            if row["split"] == "dev" and (kept is None or row["best"] != kept["best"]):
                kept = row
        return kept

    def training_minutes(self) -> float:
        """How long it was trained, up to the last row of the log."""
        return max((float(row["seconds"]) for row in self.log()), default=0.0) / 60

    def prepare(
        self,
        source: Any,
        *,
        unknown: str = "error",
        optional: tuple[str, ...] = (),
        progress: bool = False,
        truncate: bool = True,
        report: bool = True,
    ) -> Corpus:
        """Texts from rows, tables or a file, read as in training; all options as `data.prepare`."""
        try:
            return prepare(
                source,
                self.config,
                tokenizer=self.tokenizer,
                schema=self.schema,
                unknown=unknown,
                optional=optional,
                progress=progress,
                truncate=truncate,
                report_truncation=report,
            )
        except UnknownKindError as error:
            if not isinstance(source, str):
                raise
            raise error.with_message(f"{error.message}; a text? give [{{{self.config.data.text!r}: ...}}]") from None

    def read(self, texts: Sequence[str], contexts: Any, *, unknown: str = "error", truncate: bool = True) -> Corpus:
        """A text for each of `contexts`, which are rows, or a table of them, from column to value.

        A column that they do not give is expected. Texts are cut as in training unless `truncate` is false; no `Notice`
        says so, but `Corpus.truncated` does. `UserError` for a column or value that the run does not know, or that only
        some give.
        """
        contexts = to_rows(contexts)
        if len(texts) != len(contexts):
            raise UserError(f"contexts: expected one for each of {len(texts):,} texts, got {len(contexts):,}")
        given = set(contexts[0]) if contexts else set()
        for context in contexts:
            for name in context:
                choose("context column", name, self.schema.columns())
            if set(context) != given:
                raise UserError(
                    f"contexts with and without {', '.join(sorted(given ^ set(context)))}: all must give the same"
                )
        missing = tuple(variable.name for variable in self.schema.variables if variable.source_column not in given)
        rows = [{**context, self.config.data.text: text} for text, context in zip(texts, contexts, strict=True)]
        try:
            return self.prepare(rows, unknown=unknown, optional=missing, truncate=truncate, report=False)
        except UserError as error:
            raise error.with_message(error.message.replace("in-memory table row", "context", 1)) from None

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Within it no gradient is kept, and products are of the numbers of `self.precision`."""
        with torch.inference_mode(), library.precision(self.precision, self.device):
            yield

    def batch(self, corpus: Corpus, rows: NDArray[np.int64]) -> Batch:
        """The texts of `rows` as one batch, where the model is."""
        return corpus.batch(rows).to(self.device)

    def batches(self, corpus: Corpus) -> Iterator[Batch]:
        """All rows of `corpus`, sorted by length."""
        for rows in corpus.batches(TOKENS):
            yield self.batch(corpus, rows)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Exact nats of every target of `corpus`, text after text (`corpus.targets` values)."""
        nats, starts = np.zeros(corpus.target_count, dtype=np.float32), target_offsets(corpus)
        with self.scoring():
            for batch in self.batches(corpus):
                lines = self.model(batch).cpu().numpy()
                for line, row, length in zip(lines, batch.rows.tolist(), batch.lengths.tolist(), strict=True):
                    nats[starts[row] : starts[row] + length] = line[:length]
        return nats

    def score(self, source: Any, *, tokens: bool = False, unknown: str = "error") -> list[dict[str, Any]]:
        """One row a text: `nats`, `targets`, `perplexity`; with `tokens` also each target and its nats.

        `source` is one row, `{"text": "lovely stay", "stars": 5}`, rows, a table or a file, which may be empty. Texts
        are scored whole, also those that training and `evaluate` cut after `max_tokens` tokens.
        """
        try:
            corpus = self.prepare(source, unknown=unknown, truncate=False)
        except UserError:
            if has_rows(source):
                raise
            return []
        nats, starts = self.nats(corpus), target_offsets(corpus)
        rows = []
        for row in range(len(corpus)):
            part = nats[starts[row] : starts[row + 1]].astype(np.float64)
            total = float(part.sum())
            scored: dict[str, Any] = {"row": row, "nats": total, "targets": len(part)}
            scored["perplexity"] = float(np.exp(total / max(1, len(part))))
            if tokens:
                ids = corpus.tokens[corpus.offsets[row] + 1 : corpus.offsets[row + 1]].tolist()
                names = self.tokenizer.decode(ids)
                scored["tokens"] = [
                    {"token": name, "nats": float(value)} for name, value in zip(names, part, strict=True)
                ]
            rows.append(scored)
        return rows


def read_config(folder: Path) -> Config:
    """The config of the run in `folder`; `UserError` where there is none, or one of a format yet to come."""
    path = folder / folders.CONFIG
    if not path.is_file():
        raise folders.not_a_run_error(folder)
    return Config.from_dict(files.read_versioned(path, FORMAT, folder), where=str(path))


def training_facts(folder: Path) -> dict[str, Any]:
    """What the run in `folder` was trained on; nothing of one whose training has not ended."""
    path = folder / "training.json"
    kept = files.read_json(path) if path.exists() else {}
    if not isinstance(kept, dict):
        raise UserError(f"{path}: damaged (it must hold an object, not a {type(kept).__name__})")
    return kept
