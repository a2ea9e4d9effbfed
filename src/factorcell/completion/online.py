"""Online learning of users: each text that a user enters changes the vector u of this user, but not the model.

    g = d nats(text | u) / d u         u <- u + change(g)           (thesis 2018, section 5.2.1)

    sgd        change = -rate g
    adagrad    s <- s + g g                                          change = -rate g / sqrt(s)
    adadelta   s <- .95 s + .05 g g    v = -g sqrt((d + e) / (s + e))    d <- .95 d + .05 v v     change = rate v

(Duchi et al. 2011; Zeiler 2012.) s (k) is the sum or mean of squared gradients, d (k) the mean of squared changes v,
and e = 1e-6. A vector u whose norm exceeds a maximum is scaled down to it. A new user starts with the vector of the
unknown user, which represents the rare users of training. A `User` is immutable: learning returns a new `User`.
Compiled code computes the update, and the gradient of the models that it supports (`nn.learning`).

Shapes: B users, k size of a user vector, S rows of optimizer state (s and d).
"""

import ctypes
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.completion.popularity import History, with_earlier_texts
from factorcell.data.columns.rows import Row, to_rows
from factorcell.data.columns.schema import Variable
from factorcell.data.private_content import find_private_content
from factorcell.data.text_folds import MAX_SHOWN, clean_text
from factorcell.errors import UserError, check_choice, check_format
from factorcell.io import files
from factorcell.ngram.mixture import Predictor
from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import UPDATE
from factorcell.nn.learning import UserModel
from factorcell.options import limits
from factorcell.options.limits import check_unknown
from factorcell.runs.run import FINGERPRINT_BYTES, Run

Floats = NDArray[np.float32]
Contexts = Sequence[Mapping[str, Any]]  # for each text, column -> value

SETTINGS = "completion.json"  # file in a run folder that stores the learning rule and the weights of the blend
FORMAT, USER_FORMAT = 1, 1  # format numbers of this file and of a stored user
MAGIC, CHECKSUM_BYTES = b"fcu", 4  # first bytes of every stored user, and size of its checksum
MAX_RATE = 1e9  # a change at this learning rate is still a finite 32-bit float
OPTIMIZERS = {"adagrad": 1, "adadelta": 2, "sgd": 0}  # name -> number of rows of the state


@dataclass(frozen=True)
class LearningRule:
    """The optimizer that learns users online, with its learning rate and the limit of the norm of user vectors.

    Attributes:
        optimizer: `adagrad`, `adadelta` or `sgd`.
        rate: The learning rate.
        max_norm: Largest norm of a user vector, as a multiple of the largest norm after training. 0 means no limit, as
            in chapter 5 of the thesis; unusual texts can then move a user far from all vectors of training.

    Raises:
        UserError: The optimizer is unknown, or a number is out of range.
    """

    optimizer: str = "adagrad"
    rate: float = 0.1
    max_norm: float = 2.0

    def __post_init__(self) -> None:
        limits.make_plain(self)
        check_choice("online optimizer", str(self.optimizer), OPTIMIZERS)
        limits.Limits(0, MAX_RATE, whole=False).check("online rate", self.rate)
        limits.check(max_norm=self.max_norm)

    @classmethod
    def load(cls, folder: str | Path) -> "LearningRule":
        """Read the rule that `train` or `tune-online` stored in a run folder, or return the default rule.

        Raises:
            UserError: The file in the run folder is not valid.
        """
        path, settings = Path(folder) / SETTINGS, read_settings(folder)
        if settings is None:
            return cls()
        try:
            return cls(**settings["rule"])
        except (KeyError, TypeError) as error:  # a missing or an unknown key
            raise UserError(f"{path}: not a rule of online learning ({error})") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def __str__(self) -> str:
        limit = "" if self.max_norm == LearningRule.max_norm else f", max_norm {self.max_norm:g}"
        return f"{self.optimizer} {self.rate:g}{limit}"

    def update(self, vector: Floats, state: Floats, gradient: Floats, max_norm: float) -> tuple[Floats, Floats]:
        """Return the user vector (k,) and the state (S, k) after a text whose nats have the `gradient` (k,).

        `max_norm` is the largest norm of the vector. Numbers of the results may be infinite.
        """
        vector_after, state_after = torch.tensor(vector), torch.tensor(state)  # copies
        arrays = {"gradient": torch.tensor(gradient), "vector": vector_after, "state": state_after}
        numbers = {"size": len(vector), "rows": len(state)}
        arguments = UPDATE.checked_arguments(numbers, arrays, rate=self.rate, max_norm=max_norm)
        library.required().factorcell_update(ctypes.byref(arguments))
        return vector_after.numpy(), state_after.numpy()


def read_settings(folder: str | Path) -> dict[str, Any] | None:
    """Return the completion settings in a run folder; None if there are none."""
    path = Path(folder) / SETTINGS
    return files.read_versioned(path, FORMAT) if path.exists() else None


@dataclass(frozen=True)
class User:
    """A user who is learned online, as an immutable value.

    Attributes:
        vector: The user vector (k,).
        state: The optimizer state (S, k).
        text_count: Number of learned texts.
        history: The last texts that the user entered.
        fingerprint: Identifies the run with which the user was learned; empty if that is unknown.

    Raises:
        UserError: A value is one that learning cannot produce, such as a number that is not finite.
    """

    vector: Floats
    state: Floats
    text_count: int = 0
    history: History = field(default_factory=History)
    fingerprint: bytes = b""

    def __post_init__(self) -> None:
        vector, state = self.vector, self.state
        has_types = {vector.dtype, state.dtype} == {np.dtype(np.float32)}
        if not (has_types and vector.ndim == 1 and vector.size and state.shape[1:] == vector.shape):
            types = f"{vector.dtype} {vector.shape} and {state.dtype} {state.shape}"
            raise UserError(f"invalid user: expected a vector and rows of state of 32-bit floats, got {types}")
        if not np.isfinite(vector).all() or not (np.isfinite(state) & (state >= 0)).all():
            raise UserError("invalid user: the state has negative numbers, or a number is not finite")
        if self.text_count < 0 or len(self.fingerprint) not in (0, FINGERPRINT_BYTES):
            count, size = self.text_count, len(self.fingerprint)
            raise UserError(f"invalid user: text count {count:,}, fingerprint of {size} bytes")

    @classmethod
    def new(cls, run: Run) -> "User":
        """Return a new user, who starts with the vector of the unknown user of `run`.

        Raises:
            UserError: The run was trained without a user column, or its model is not adapted to users.
        """
        return Learner(run).new()

    def check(self, run: Run) -> None:
        """Raise a `UserError` if the user was learned with a different run."""
        if self.fingerprint and run.fingerprint and self.fingerprint != run.fingerprint:
            user_digits, run_digits = self.fingerprint.hex()[:8], run.fingerprint.hex()[:8]
            reason = f"fingerprint {user_digits}..., this run is {run_digits}..."
            raise UserError(f"this user belongs to another run ({reason}); learn the user again from the user's texts")
        if self.vector.shape != (run.config.model.variable_size,):
            expected = run.config.model.variable_size
            raise UserError(f"{run.folder}: expected a user vector of size {expected}, got size {self.vector.size}")

    def to_bytes(self) -> bytes:
        """Return the user as bytes: a header and a line of JSON, vector and state (4 bytes per number), checksum."""
        values = {
            "size": self.vector.size,
            "rows": len(self.state),
            "text_count": self.text_count,
            "fingerprint": self.fingerprint.hex(),
            "texts": self.history.texts,
        }
        numbers = np.concatenate([self.vector, self.state.ravel()]).astype("<f4").tobytes()
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
        content = MAGIC + bytes([USER_FORMAT]) + line + b"\n" + numbers
        return content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")

    @classmethod
    def from_bytes(cls, content: bytes) -> "User":
        """Return the user whose method `to_bytes` returned `content`.

        Raises:
            UserError: The bytes were altered, cut or extended, or contain values that a user cannot have.
        """
        start, magic = len(MAGIC) + 1, content[: len(MAGIC)]
        if magic == MAGIC and len(content) >= start:
            check_format(content[len(MAGIC)], USER_FORMAT, "this user")
        content, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
        if magic != MAGIC or zlib.crc32(content) != int.from_bytes(checksum, "little"):
            raise UserError("invalid user: the data was truncated or altered")
        line, _, numbers = content[start:].partition(b"\n")
        try:
            values = json.loads(line)
            rows = np.frombuffer(numbers, "<f4").astype(np.float32).reshape(1 + values["rows"], values["size"])
            history, fingerprint = History(tuple(values["texts"])), bytes.fromhex(values["fingerprint"])
            vector, state, text_count = rows[0], rows[1:], int(values["text_count"])
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"invalid user: the data cannot be read ({error})") from None
        return cls(vector, state, text_count, history, fingerprint)


class Learner:
    """Learns users online, with one run and one learning rule.

    A learner never changes, so threads can share it. It computes in float32 even if the run uses bfloat16, for which
    PyTorch would retain megabytes of memory for each different length of a text.
    """

    def __init__(self, run: Run, rule: LearningRule | None = None, unknown: str = "error") -> None:
        """Prepare online learning with a run.

        Args:
            run: The run.
            rule: The learning rule; by default the rule in the run folder.
            unknown: The policy for values that training never saw: "group", "expected" or "error".

        Raises:
            UserError: The run was trained without a user column, its model is not adapted to users, or the policy for
                unknown values is unknown, or the compiled code is missing.
        """
        library.required()
        self.run, self.rule, self.variable = run, rule or LearningRule.load(run.folder), user_variable(run)
        self.unknown_policy = check_unknown(unknown)
        self.columns = run.schema.columns(without=self.variable.source_column)  # of the context, without the user
        encoder = run.model.encoder
        assert encoder is not None
        table = encoder.tables[run.schema.categories.index(self.variable)].detach().cpu().numpy()
        self.unknown_vector: Floats = table[0].copy()
        self.state_shape = OPTIMIZERS[self.rule.optimizer], len(self.unknown_vector)
        self.packed = run.model.backbone.pack()
        self.user_model = UserModel.from_model(run.model, self.variable)
        largest_norm = float(np.linalg.norm(table, axis=1).max())
        self.max_vector_norm = self.rule.max_norm * largest_norm if self.rule.max_norm else math.inf

    def new(self) -> User:
        """Return a new user."""
        return User(self.unknown_vector, np.zeros(self.state_shape, np.float32), fingerprint=self.run.fingerprint)

    def learn(
        self, users: Sequence[User], texts: Sequence[str], contexts: Contexts | None = None
    ) -> tuple[list[User], NDArray[np.float64]]:
        """Learn one text of each of several users.

        Args:
            users: B different users; a run with `prompt_history` reads the last texts of their histories as prompts.
            texts: One text of each user; texts with more than `max_tokens` tokens are cut, as in training.
            contexts: For each text, column -> value without the user; a missing value is read as its expected value.

        Returns:
            The users after learning, and the nats (B,) of the texts before learning under the neural model. Users
            whose texts or contexts seem to contain private content (`find_private_content`) are unchanged.

        Raises:
            UserError: A text, a context or a user is not valid. All users are then unchanged.
        """
        texts = [clean_text(text) for text in texts]
        rows: list[Row] = [{}] * len(texts) if contexts is None else to_rows(contexts)
        if not len(users) == len(texts) == len(rows):
            counts = f"{len(users):,} users, {len(texts):,} texts and {len(rows):,} contexts"
            raise UserError(f"learning: expected a text and a context for each user, got {counts}")
        if not users:
            return [], np.zeros(0)
        for user in users:
            user.check(self.run)
            if user.state.shape != self.state_shape:
                expected = f"expected a user with {self.state_shape[0]} rows of {self.rule.optimizer} state"
                raise UserError(f"{self.run.folder}: {expected}, got {len(user.state)}")
        prompted_rows = [with_earlier_texts(self.run, user.history, row) for user, row in zip(users, rows, strict=True)]
        vectors = np.stack([user.vector for user in users])
        nats, gradients = self.gradients(vectors, texts, prompted_rows)
        return [
            user if find_private_content(text, row) else self.updated_user(user, text, gradient)
            for user, text, row, gradient in zip(users, texts, rows, gradients, strict=True)
        ], nats

    def gradients(
        self, vectors: Floats, texts: Sequence[str], contexts: Contexts
    ) -> tuple[NDArray[np.float64], Floats]:
        """Return the nats (B,) of texts under the neural model, and the gradients in the user `vectors` (B, k)."""
        if self.user_model is not None:
            corpus = self.run.read(texts, contexts, unknown=self.unknown_policy)
            return self.user_model.gradients(torch.tensor(vectors), corpus)
        with torch.enable_grad():  # for a Transformer, another recurrent cell, or a GPU
            user_vectors = torch.tensor(vectors, device=self.run.device, requires_grad=True)
            nats = self._nats(self.run.model, user_vectors, texts, contexts)
            (gradients,) = torch.autograd.grad(nats.sum(), user_vectors)
        return nats.detach().double().cpu().numpy(), gradients.cpu().numpy()

    def nats(self, vectors: Floats, texts: Sequence[str], contexts: Contexts | None = None) -> NDArray[np.float64]:
        """Return the nats (B,) of texts, under the mixture if there is one; `vectors` (B, k) or (1, k) are of users."""
        with torch.inference_mode():
            user_vectors = torch.tensor(vectors, device=self.run.device).expand(len(texts), -1)
            nats = self._nats(self.run.predictor, user_vectors, texts, contexts or [{}] * len(texts))
            return nats.double().cpu().numpy()

    def _nats(
        self, predictor: Predictor, user_vectors: torch.Tensor, texts: Sequence[str], contexts: Contexts
    ) -> torch.Tensor:
        batch = self.run.batch(self.run.read(texts, contexts, unknown=self.unknown_policy), np.arange(len(texts)))
        conditioning = predictor.condition(batch.context, {self.variable.name: user_vectors}, self.packed)
        return predictor(batch, conditioning).sum(1)

    def updated_user(self, user: User, text: str, gradient: Floats) -> User:
        """Return the user after learning `text`, whose nats have the `gradient` (k,) in the vector.

        Raises:
            UserError: A number of the user would not be finite.
        """
        fingerprint = user.fingerprint or self.run.fingerprint
        history = replace(user.history, texts=(*user.history.texts, self.run.tokenizer.normalize(text)))
        changes: dict[str, Any] = {"text_count": user.text_count + 1, "history": history, "fingerprint": fingerprint}
        if not np.isfinite(gradient).all():
            return replace(user, **changes)  # the nats overflow, so the vector cannot learn from this text
        vector, state = self.rule.update(user.vector, user.state, gradient, self.max_vector_norm)
        try:
            return replace(user, **changes, vector=vector, state=state)
        except UserError as error:
            message = f"{text[:MAX_SHOWN]!a} cannot be learned by {self.rule} ({error}); the user is unchanged"
            raise UserError(message) from None


def learn_one(run: Run, user: User, text: str, context: Mapping[str, Any] | None = None) -> User:
    """Return the user after learning one more text with the learning rule of the run.

    Args:
        run: The run with which the user was learned.
        user: The user before learning.
        text: The text that the user entered; a finding says if it has more than `max_tokens` tokens and is cut.
        context: Column -> value, without the user column.

    Returns:
        A new user; `user` itself if the text or the context seems to contain private content (`find_private_content`).

    Raises:
        UserError: The text, the context or the user is not valid.
    """
    (learned,), _ = Learner(run).learn([user], [text], None if context is None else [context])
    return learned


def distinguishes_users(run: Run) -> bool:
    """Return whether the run has a user column and its model is adapted to users."""
    return bool(run.config.data.user) and run.model.encoder is not None and run.model.prefix is None


def user_variable(run: Run) -> Variable:
    """Return the context variable of users; raise a `UserError` if the run has none or is not adapted to it."""
    name = run.config.data.user
    if not name:
        raise UserError(f"{run.folder}: the run does not distinguish users; train it with --user COLUMN")
    if run.model.encoder is None or run.model.prefix is not None:
        raise UserError(f"{run.folder}: the model is not adapted to users; train it with --adapt factor or concat")
    return run.schema.variable(name)
