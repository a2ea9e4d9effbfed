"""Online learning of users: each text that a user enters changes the vector u of this user, but not the model.

    g = d nats(text | u) / d u         u <- u + change(g)           (thesis 2018, section 5.2.1)

    sgd        change = -rate g
    adagrad    s <- s + g g                                          change = -rate g / sqrt(s)
    adadelta   s <- .95 s + .05 g g    v = -g sqrt((d + e) / (s + e))    d <- .95 d + .05 v v     change = rate v

(Duchi et al. 2011; Zeiler 2012.) s (k) is the sum or mean of squared gradients, d (k) the mean of squared changes v,
and e = 1e-6. A vector u whose norm exceeds a maximum is scaled down to it. A new user starts with the vector of the
unknown user, which represents the rare users of training. A `User` is immutable: learning returns a new `User`.

Shapes: B users, k size of a user vector, S rows of optimizer state (s and d).
"""

import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.completion.popularity import History, with_earlier_texts
from factorcell.completion.texts import MAX_SHOWN, clean_text
from factorcell.data.columns.rows import Row, to_rows
from factorcell.data.columns.schema import Variable
from factorcell.data.private_content import find_private_content
from factorcell.errors import UserError, check_choice, check_format
from factorcell.io import files
from factorcell.ngram.mixture import Predictor
from factorcell.options import limits
from factorcell.options.limits import check_unknown
from factorcell.runs.run import FINGERPRINT_BYTES, Run

Floats = NDArray[np.float32]
Contexts = Sequence[Mapping[str, Any]]  # for each text, column -> value
Update = Callable[[Floats, Floats], tuple[Floats, Floats]]  # gradient, state (S, k) -> change at rate 1, state

SETTINGS = "completion.json"  # file in a run folder that stores the learning rule and the weights of the blend
FORMAT, USER_FORMAT = 1, 1  # format numbers of this file and of a stored user
MAGIC = b"fcu"  # first bytes of every stored user
HEADER, CHECKSUM = struct.Struct(f"<3sB{FINGERPRINT_BYTES}sHHI"), struct.Struct("<I")
MAX_VECTOR_SIZE, MAX_TEXT_COUNT = (1 << 16) - 1, (1 << 32) - 1  # the largest integers that the header can store
BATCH_SIZE = 200  # largest number of texts that the model reads at once
DECAY, EPSILON = 0.95, 1e-6  # decay of the means of Adadelta; number that prevents divisions by zero
MAX_RATE = 1e9  # a change at this learning rate is still a finite 32-bit float


def _sgd(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    return -gradient, state


def _adagrad(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    squared_gradients = state[0] + gradient**2
    return -gradient / (np.sqrt(squared_gradients) + EPSILON), squared_gradients[None]


def _adadelta(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    squared_gradients, squared_changes = state
    squared_gradients = DECAY * squared_gradients + (1 - DECAY) * gradient**2
    change = -gradient * np.sqrt((squared_changes + EPSILON) / (squared_gradients + EPSILON))
    return change, np.stack([squared_gradients, DECAY * squared_changes + (1 - DECAY) * change**2])


# Name of an optimizer -> the number of rows of its state, and the function that computes a change.
OPTIMIZERS: dict[str, tuple[int, Update]] = {"adagrad": (1, _adagrad), "adadelta": (2, _adadelta), "sgd": (0, _sgd)}
MAX_STATE_ROWS = max(row_count for row_count, _ in OPTIMIZERS.values())


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
        is_number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if not is_number or not 0 <= self.rate <= MAX_RATE:
            raise UserError(f"the online rate is {self.rate!r:.40}; it must be a number from 0 to {MAX_RATE:g}")
        limits.NUMBER_LIMITS["max_norm"].check("max_norm", self.max_norm)

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
        has_shapes = vector.ndim == 1 and 0 < vector.size <= MAX_VECTOR_SIZE and state.shape[1:] == vector.shape
        if not (has_types and has_shapes and len(state) <= MAX_STATE_ROWS):
            types = f"{vector.dtype} {vector.shape} and {state.dtype} {state.shape}"
            raise UserError(f"invalid user: expected a vector and rows of state of 32-bit floats, got {types}")
        if not np.isfinite(vector).all() or not (np.isfinite(state) & (state >= 0)).all():
            raise UserError("invalid user: the state has negative numbers, or a number is not finite")
        if not 0 <= self.text_count <= MAX_TEXT_COUNT or len(self.fingerprint) not in (0, FINGERPRINT_BYTES):
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
        """Return the user as bytes: header, vector and state (4 bytes per number), texts, and checksum."""
        texts = [text.encode() for text in self.history.texts]
        numbers = np.concatenate([self.vector, self.state.ravel()]).astype("<f4").tobytes()
        sizes = len(self.vector), len(self.state), self.text_count
        content = HEADER.pack(MAGIC, USER_FORMAT, self.fingerprint, *sizes) + numbers
        content += b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return content + CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def from_bytes(cls, content: bytes) -> "User":
        """Return the user whose method `to_bytes` returned `content`.

        Raises:
            UserError: The bytes were altered, cut or extended, or contain values that a user cannot have.
        """
        magic = content[: len(MAGIC)]
        if magic == MAGIC and len(content) > len(MAGIC):
            check_format(content[len(MAGIC)], USER_FORMAT, "this user")
        content, checksum = content[: -CHECKSUM.size], content[-CHECKSUM.size :]
        if len(content) < HEADER.size or magic != MAGIC or CHECKSUM.pack(zlib.crc32(content)) != checksum:
            raise UserError("invalid user: the data was truncated or altered")
        try:
            _, _, fingerprint, size, state_row_count, text_count = HEADER.unpack_from(content)
            numbers = np.frombuffer(content, "<f4", size * (1 + state_row_count), HEADER.size).astype(np.float32)
            texts, offset = [], HEADER.size + numbers.nbytes
            while offset < len(content):
                (length,) = struct.unpack_from("<I", content, offset)
                begin, offset = offset + 4, offset + 4 + length
                if offset > len(content):
                    raise ValueError("cut off")
                texts.append(content[begin:offset].decode())
            vector, state = numbers[:size], numbers[size:].reshape(state_row_count, size)
        except (struct.error, ValueError) as error:
            raise UserError(f"invalid user: the data cannot be read ({error})") from None
        return cls(vector, state, text_count, History(tuple(texts)), fingerprint if any(fingerprint) else b"")


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
                unknown values is unknown.
        """
        self.run, self.rule, self.variable = run, rule or LearningRule.load(run.folder), user_variable(run)
        self.unknown_policy = check_unknown(unknown)
        self.columns = run.schema.columns(without=self.variable.source_column)  # of the context, without the user
        self.state_row_count, self.compute_change = OPTIMIZERS[self.rule.optimizer]
        encoder = run.model.encoder
        assert encoder is not None
        table = encoder.tables[run.schema.categories.index(self.variable)].detach().cpu().numpy()
        self.unknown_vector: Floats = table[0].copy()
        self.packed = run.model.backbone.pack()
        largest_norm = float(np.linalg.norm(table, axis=1).max())
        self.max_vector_norm = self.rule.max_norm * largest_norm if self.rule.max_norm else math.inf

    def new(self) -> User:
        """Return a new user."""
        state = np.zeros((self.state_row_count, len(self.unknown_vector)), np.float32)
        return User(self.unknown_vector, state, fingerprint=self.run.fingerprint)

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
            if user.state.shape != (self.state_row_count, len(self.unknown_vector)):
                expected = f"expected a user with {self.state_row_count} rows of {self.rule.optimizer} state"
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
        with torch.enable_grad():
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

    def largest_gains(self, user: User, texts: Sequence[str], count: int = 5) -> list[tuple[str, float]]:
        """Return the `count` texts whose log probability rose most since the user was new, each with its rise in nats.

        References:
            Thesis 2018, tables 5.3 to 5.5.
        """
        user.check(self.run)
        vectors = self.unknown_vector[None], user.vector[None]
        if not texts:
            return []
        batches = [texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)]
        before, after = (np.concatenate([self.nats(vector, batch) for batch in batches]) for vector in vectors)
        order = np.argsort(after - before, kind="stable")[:count]
        return [(texts[index], float(before[index] - after[index])) for index in order]

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
        with np.errstate(over="ignore", invalid="ignore"):  # `User` raises an error for numbers that are not finite
            change, state = self.compute_change(gradient, user.state)
            vector = user.vector + self.rule.rate * change
            norm = float(np.linalg.norm(vector))
            vector = vector * (self.max_vector_norm / norm) if norm > self.max_vector_norm else vector
        try:
            return replace(user, **changes, vector=vector.astype(np.float32), state=state.astype(np.float32))
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
    """Return the context variable whose values are the users.

    Raises:
        UserError: The run has no user column, or its model is not adapted to users.
    """
    name = run.config.data.user
    if not name:
        raise UserError(f"{run.folder}: the run does not distinguish users; train it with --user COLUMN")
    if run.model.encoder is None or run.model.prefix is not None:
        raise UserError(f"{run.folder}: the model is not adapted to users; train it with --adapt factor or concat")
    return run.schema.variable(name)
