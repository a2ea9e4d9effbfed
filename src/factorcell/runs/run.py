"""The run folder: one trained model with everything that it needs to read new texts (docs/formats.md)."""

import hashlib
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from factorcell.config import FORMAT, PRECISIONS, Config
from factorcell.data.columns.rows import ResultRows
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tables.chunks import EmptyTableError
from factorcell.data.tables.tables import table_name
from factorcell.data.tokenizers.kinds import load_tokenizer, tokenizer_files
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError, check_choice
from factorcell.io import files, input_files, lock, remote
from factorcell.io.arrays import blocks
from factorcell.io.findings import Finding, report
from factorcell.io.lazy import LazyMethod
from factorcell.io.progress import progress_bar
from factorcell.ngram.mixture import FILE as MIXTURE_FILE
from factorcell.ngram.mixture import Mixture, Predictor, open_mixture
from factorcell.nn import sizes
from factorcell.nn.devices import AUTO, FLOAT32, find_device, find_precision
from factorcell.nn.kernels import library
from factorcell.nn.language_model import LanguageModel, find_names, with_identified_base
from factorcell.nn.scoring import TextModel, check_lengths, put_batch, score_rows

LOG = "log.jsonl"
WEIGHTS = "weights.safetensors"
FACTS = "training.json"  # written at the end of a training
CHECKPOINT = "checkpoint.safetensors"  # the state from which training resumes
MAX_BATCH_TOKENS = 20_000  # largest number of tokens in a batch of scoring
FINGERPRINT_BYTES = 16  # a run is identified by this many bytes, the beginning of the SHA-256 of its weights

UNIGRAMS = "unigrams.safetensors"  # how often each token was a target of training, also by values of categories
TEXT_HASHES = "text_hashes.safetensors"  # of training texts, to find them in tables that are evaluated
MAX_TEXT_HASHES = 100_000  # number of hashes, the smallest ones, that are saved


def initial_files() -> tuple[str, ...]:
    """Return the names of the files that a training writes before its first step."""
    return ("config.json", "schema.json", *tokenizer_files(), "start.safetensors", "log.jsonl")


class Run(TextModel):
    """A model with its config, tokenizer and context schema, stored in one folder.

        Run.open("runs/reviews").score(["lovely stay"], context={"stars": 5})

    `run.evaluate(...)`, `run.explain(...)` and `run.generate(...)` call the functions `factorcell.evaluate(run, ...)`
    and so on, with the same arguments; `run.predict(...)` calls `factorcell.classify(run, ...)`.

    Attributes:
        folder: The folder.
        config: All options of the run.
        tokenizer: The tokenizer.
        schema: The context variables.
        model: The neural language model, in evaluation mode.
        mixture: The mixture of `model` with n-gram models; None if training saved none.
        precision: The precision of products in scoring, "float32" or "bfloat16".
        fingerprint: Bytes that identify the weights; empty until the weights are loaded.
    """

    def __init__(self, folder: str | Path, config: Config, tokenizer: Tokenizer, schema: ContextSchema) -> None:
        """Create an untrained model with random weights; raise a `UserError` if it does not fit into memory."""
        self.folder, self.config, self.tokenizer, self.schema = Path(folder), config, tokenizer, schema
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.training.seed)  # does not seed the generators of GPUs
            sizes.check_memory(config, len(tokenizer), schema)
            names = find_names(config, schema, tokenizer)
            self.model = LanguageModel(config, len(tokenizer), schema, tokenizer.specials, names, tokenizer.known_count)
        self.model.eval()
        self.mixture: Mixture | None = None
        self.precision, self.fingerprint = FLOAT32, b""

    def __repr__(self) -> str:
        size = self.model.parameter_count()
        columns = ", ".join(variable.name for variable in self.schema.variables) or "no context"
        return f"Run({str(self.folder)!r}: {self.config.tokenizer.kind}, {columns}, {size:,} parameters)"

    @classmethod
    def create(cls, folder: str | Path, config: Config, tokenizer: Tokenizer, schema: ContextSchema) -> "Run":
        """Create a folder with an untrained model.

        Raises:
            UserError: The folder is not empty, there is nothing to train, or training does not fit into memory.
        """
        folder, config = Path(folder), with_identified_base(config)
        sizes.check_memory(config, len(tokenizer), schema, for_training=True)
        if not sizes.meta_model(config, len(tokenizer), schema).trained_count():
            problem = "expected weights to train, got a frozen base without adapters and shared LoRA"
            raise UserError(f"model: {problem}; set --shared-rank, --adapt or --train-base")
        files.create_new_folder(folder, resumable=True)
        run = cls(folder, config, tokenizer, schema)
        files.write_versioned(folder / "config.json", config.to_dict(), FORMAT)
        files.write_json(folder / "schema.json", schema.to_dict())
        tokenizer.save(folder)
        return run

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        trained: bool = True,
        mixture: bool = True,
        device: str = "cpu",
        precision: str = AUTO,
    ) -> "Run":
        """Open a run folder.

        Args:
            folder: The folder: a path, or an address of fsspec such as "s3://bucket/runs/reviews", which is copied.
            trained: Whether to load the best weights; otherwise the model stays untrained, for resuming a training.
            mixture: Whether to predict with the n-gram mixture, if the run has one, instead of the neural model.
            device: "cpu", "cuda", or "auto", by the rule of `factorcell.nn.devices`.
            precision: Precision of products in scoring: "float32", "bfloat16", or "auto", by the same rule.

        Raises:
            UserError: The folder is not a run, its files are damaged, or the model does not fit into memory.
        """
        if remote.SEPARATOR in str(folder):
            options: dict[str, Any] = {"mixture": mixture, "device": device, "precision": precision}
            with remote.copied_folder(str(folder), leave_out=(CHECKPOINT,)) as copy:
                return delete_with(cls.open(copy, trained=trained, **options), copy.parent)
        folder = Path(folder)
        if trained:
            check_weights(folder)
        config = read_config(folder)
        schema, tokenizer = ContextSchema.load(folder / "schema.json"), load_tokenizer(config, folder)
        check_choice("precision", precision, PRECISIONS)
        run = cls(folder, config, tokenizer, schema)
        run.model.to(find_device(device))
        run.precision = find_precision(precision, run.device, config.backbone)
        if trained:
            run.load_weights()
            if mixture:
                run.load_mixture()
        return run

    @property
    def predictor(self) -> Predictor:
        """The mixture that predicts the tokens of texts, or the neural model if there is no mixture."""
        return self.model if self.mixture is None else self.mixture

    def load_mixture(self) -> None:
        """Predict with the n-gram mixture in the folder, if there is one."""
        self.mixture = open_mixture(self.folder, self.config, self.model, self.tokenizer, self.schema)

    @property
    def has_mixture(self) -> bool:
        """Whether the folder has a mixture, with which the run predicts unless it is opened without it."""
        return (self.folder / MIXTURE_FILE).is_file()

    @property
    def reads_context(self) -> bool:
        """Whether predictions depend on the context; otherwise, tables may lack the context columns."""
        return self.model.is_adapted and bool(self.schema.variables)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.embedding.device

    def load_weights(self) -> None:
        """Load the best weights from the folder and disable gradients of the model.

        Raises:
            UserError: The weights are missing, damaged or of another model, or the schema or vocabulary was altered.
        """
        path = self.folder / WEIGHTS
        tensors, facts = files.load_tensors(path)
        files.check_digests(self.folder, facts.get("digests", {}))
        saved = self.model.saved_tensors()
        for name in {**saved, **tensors}:
            expected, shape = (tuple(part[name].shape) if name in part else None for part in (saved, tensors))
            if shape != expected:
                mismatch = f"{name}: expected {expected or 'nothing'}, got {shape or 'nothing'}"
                raise UserError(f"{path}: does not belong to this config, schema and vocabulary ({mismatch})")
        for name, tensor in tensors.items():
            if not tensor.sum().isfinite():
                raise UserError(f"{path}: {name} contains NaN or infinity; train the run again")
        with torch.no_grad():
            for name, tensor in saved.items():
                tensor.copy_(tensors[name])
        self.model.requires_grad_(False)
        with path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").digest()[:FINGERPRINT_BYTES]

    def save_weights(self, facts: dict[str, Any]) -> None:
        """Write the weights of the model and `facts` about them to the folder."""
        facts = {**facts, "digests": files.digests(self.folder, ("schema.json", *self.tokenizer.FILES))}
        files.save_tensors(self.folder / WEIGHTS, self.model.saved_tensors(), facts)

    def save_unigram_counts(self, counts: NDArray[np.int64], by_value: Mapping[str, csr_array] | None = None) -> None:
        """Write how often each token was a target of training (V,), and so by the values of categories (K, V)."""
        tensors = {"counts": torch.from_numpy(counts)}
        for name, matrix in (by_value or {}).items():
            parts = {"counts": matrix.data, "tokens": matrix.indices, "offsets": matrix.indptr}
            tensors |= {f"{name}:{part}": torch.from_numpy(array.astype(np.int32)) for part, array in parts.items()}
        files.save_tensors(self.folder / UNIGRAMS, tensors, {})

    @property
    def has_unigram_counts(self) -> bool:
        """Whether the folder has counts of tokens, which a training writes at its end."""
        return (self.folder / UNIGRAMS).exists()

    def unigram_counts(self) -> Tensor:
        """Read how often each token was a target of training (V,), as 64-bit integers."""
        path = self.folder / UNIGRAMS
        if not self.has_unigram_counts:
            raise UserError(f"{path}: there is no such file; training writes it at its end")
        counts = _load_integers(path, "counts")
        if counts.shape != (len(self.tokenizer),) or bool((counts < 0).any()):
            raise UserError(f"{path}: expected a count for each token")
        return counts

    def unigram_counts_by_value(self, name: str) -> csr_array | None:
        """Read how often each token was a target with each value of a category (K, V); None if this is not saved."""
        path, size = self.folder / UNIGRAMS, len(self.schema.variable(name).values)
        tensors = files.load_tensors(path)[0] if self.has_unigram_counts else {}
        if f"{name}:counts" not in tensors:
            return None
        try:
            parts = tuple(tensors[f"{name}:{part}"].numpy() for part in ("counts", "tokens", "offsets"))
            matrix = csr_array(parts, (size, len(self.tokenizer)))
            matrix.check_format()
        except (KeyError, ValueError) as error:
            raise UserError(f"{path}: damaged counts of {name} ({error})") from None
        return matrix

    def save_text_hashes(self, hashes: NDArray[np.uint64]) -> None:
        """Write the smallest `MAX_TEXT_HASHES` hashes of training texts to the folder."""
        smallest = np.zeros(0, np.uint64)
        for block in blocks(len(hashes)):
            smallest = np.union1d(smallest, hashes[block])[:MAX_TEXT_HASHES]
        files.save_tensors(self.folder / TEXT_HASHES, {"hashes": torch.from_numpy(smallest.view(np.int64))}, {})

    def text_hashes(self) -> NDArray[np.uint64] | None:
        """Read the hashes of training texts from the folder; None without such a file."""
        path = self.folder / TEXT_HASHES
        return _load_integers(path, "hashes").numpy().view(np.uint64) if path.exists() else None

    def set_steps(self, steps: int, epochs: float) -> None:
        """Change the number of steps and of passes in the config, in memory and in the folder."""
        self.config = replace(self.config, training=replace(self.config.training, steps=steps, epochs=epochs))
        files.write_versioned(self.folder / "config.json", self.config.to_dict(), FORMAT)

    @property
    def log_path(self) -> Path:
        """The path of the training log, a file with a JSON object per line."""
        return self.folder / LOG

    def log(self) -> list[dict[str, Any]]:
        """Read the rows of the training log."""
        return files.read_rows(self.log_path)

    def best_evaluation(self) -> dict[str, Any] | None:
        """Return the log row of the best evaluation, whose weights were saved; None before the first evaluation."""
        rows = [row for row in self.log() if row["split"] == "dev"]
        return next((row for row in rows if row["best"] == rows[-1]["best"]), None)

    def stopped_improving(self) -> bool:
        """Return whether more steps would hardly help, because the best evaluation was not the last."""
        best = self.best_evaluation()
        return best is not None and bool(best["step"] < self.log()[-1]["step"])

    def training_minutes(self) -> float:
        """Return the duration of training in minutes, up to the last row of the training log."""
        return max((float(row["seconds"]) for row in self.log()), default=0.0) / 60

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Disable gradients, and compute products in `self.precision`."""
        with torch.inference_mode(), library.precision(self.precision, self.device):
            yield

    def batch(self, corpus: Corpus, rows: NDArray[np.int64]) -> Batch:
        """Return the texts `rows` of `corpus` as one batch on the device of the model."""
        return corpus.batch(rows).to(self.device)

    def batches(self, corpus: Corpus) -> Iterator[Batch]:
        """Yield all texts of `corpus` in batches, sorted by length."""
        for rows in corpus.batches(MAX_BATCH_TOKENS, max_texts=self.model.texts_at_once):
            yield self.batch(corpus, rows)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the exact nats of all targets of `corpus` (`corpus.target_count` values), one text after the other."""
        nats, starts = np.zeros(corpus.target_count, dtype=np.float32), target_offsets(corpus)
        bar = progress_bar(total=len(corpus), desc="evaluating", unit="texts")
        with bar, self.scoring():
            for batch in self.batches(corpus):
                put_batch(nats, self.predictor(batch).cpu().numpy(), batch, starts)
                bar.update(len(batch.rows))
        return nats

    def score(self, source: Any, *, context: Any = None, unknown: str | None = None) -> NDArray[np.float64]:
        """Return the nats of whole texts (N,); see `score_rows`."""
        return np.array([row["nats"] for row in self.score_rows(source, context=context, unknown=unknown)])

    def score_rows(
        self, source: Any, *, context: Any = None, tokens: bool = False, unknown: str | None = None
    ) -> ResultRows:
        """Score whole texts, including those that training and `evaluate` cut after `max_tokens` tokens.

        Args:
            source: A list of texts or a column of a data frame; or texts with their contexts: one row such as
                `{"text": "lovely stay", "stars": 5}`, rows, a table, or the path of a file.
            context: Only for texts without a context: one context such as `{"stars": 5}` for all texts, or a list or
                table with a context for each. Columns without a value get their expected values.
            tokens: Whether to list each target with its nats.
            unknown: The policy for values that training never saw: "group", "expected" or "error"; by default "error"
                for one context, which may be mistyped, and "group" for tables.

        Returns:
            A row for each text: the index of the text in the source as `row`, `nats`, `targets`, `perplexity`, the
            number of `unknown_targets`, which are out of vocabulary, and `tokens` if requested.

        Raises:
            UserError: The source cannot be read, a value is unknown, or a text is longer than the backbone can read.
        """
        if unknown is None:
            unknown = "error" if isinstance(context, Mapping) else "group"
        try:
            corpus = self.prepare(source, context=context, unknown=unknown, truncate=False)
        except EmptyTableError:
            return ResultRows()
        check_lengths(corpus, self.model.max_tokens, lambda row: f"{table_name(source)} row {row + 1}")
        rows = ResultRows(score_rows(self.nats(corpus), corpus, with_tokens=tokens))
        if count := sum(2 * row["unknown_targets"] >= row["targets"] for row in rows):
            problem = f"half of the tokens or more are out of vocabulary in {count:,} of {len(rows):,} texts"
            report(Finding("unknown words", f"{table_name(source)}: {problem}, which therefore seem probable"))
        return rows

    # Public functions, with this run as their first argument.
    predict, evaluate, explain, generate = map(LazyMethod, ("classify", "evaluate", "explain", "generate"))
    score_arrow, predict_arrow, embed_arrow, generate_arrow = (
        LazyMethod(f"{verb}_arrow", "factorcell.evaluation") for verb in ("score", "predict", "embed", "generate")
    )
    export = LazyMethod("export", "factorcell.runs.exporting")
    report_findings = LazyMethod("report_run", "factorcell.evaluation.diagnostics")


def delete_with(run: Run, folder: Path) -> Run:
    """Delete a temporary folder when the run is no longer used; return the run."""
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def _load_integers(path: Path, name: str) -> Tensor:
    tensor = files.load_tensors(path)[0].get(name)
    if tensor is None or tensor.dtype != torch.int64 or tensor.dim() != 1:
        raise UserError(f"{path}: expected 64-bit {name}")
    return tensor


def read_config(folder: Path) -> Config:
    """Read the config of the run in `folder`; raise a `UserError` if it is not a run folder, or has a newer format."""
    path = folder / input_files.CONFIG
    if not path.is_file():
        raise input_files.not_a_run_error(folder)
    return Config.from_dict(files.read_versioned(path, FORMAT, folder), where=str(path))


def training_facts(folder: Path) -> dict[str, Any]:
    """Read the facts about the training of the run in `folder`; return an empty mapping if training has not ended."""
    path = folder / FACTS
    facts = files.read_json(path) if path.exists() else {}
    if not isinstance(facts, dict):
        raise UserError(f"{path}: damaged (expected an object, got {type(facts).__name__})")
    return facts


def check_weights(folder: Path) -> None:
    """Raise a `UserError` if a training has begun in `folder` but has not saved weights."""
    if (folder / WEIGHTS).exists() or (folder / FACTS).exists():
        return
    if lock.is_locked(folder):
        problem = f"{describe_running(folder)} and has no weights before its first evaluation"
        raise UserError(f"{folder}: {problem}; try again later")
    if (folder / LOG).exists() or (folder / CHECKPOINT).exists():
        problem = "training stopped before its first evaluation"
        raise UserError(f"{folder}: {problem}; run the training command again with --resume")


def describe_running(folder: Path) -> str:
    """Return a clause that the training in `folder` is running, with its step if the log has a row."""
    return f"its training is running{_last_step(folder)}"


def describe_unfinished(folder: Path) -> str | None:
    """Return a clause about a training that is running or that stopped before its last step; None if it has ended."""
    if lock.is_locked(folder):
        return describe_running(folder)
    last_step = _last_step(folder)
    if not last_step or (folder / FACTS).exists():
        return None
    return f"its training stopped{last_step}"


def _last_step(folder: Path) -> str:
    """Return the last step in a log and the number of steps of the training; empty if the log does not say them."""
    row: files.Row = next(reversed(files.read_rows(folder / LOG)), {})
    step, steps = row.get("step"), row.get("steps")
    return f" (step {step:,} of {steps:,})" if isinstance(step, int) and isinstance(steps, int) else ""
