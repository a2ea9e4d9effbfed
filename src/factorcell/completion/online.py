"""Online learning of users: each text moves only the user's vector u; the weights of the model do not change.

    g = d nats(text | u) / d u         u <- u + change(g)           (thesis 2018, section 5.2.1)

    sgd        change = -rate g
    adagrad    s <- s + g g                                          change = -rate g / sqrt(s)
    adadelta   s <- .95 s + .05 g g    v = -g sqrt((d + e) / (s + e))    d <- .95 d + .05 v v     change = rate v

(Duchi et al. 2011; Zeiler 2012.) A vector that exceeds the longest permitted length is scaled down. A new user starts
as the unknown user, which stands for the rare users of training. A `User` is a value: learning returns another one.

Shapes: B users, k numbers of a user's vector, s rows of optimiser state.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files, limits
from factorcell.completion.popularity import History
from factorcell.completion.texts import SHOWN, clean_text
from factorcell.config import UserError, check_format, choose
from factorcell.data.cache import report_truncated
from factorcell.data.rows import Row, to_rows
from factorcell.data.schema import Variable
from factorcell.data.tokens import truncated_mask
from factorcell.model.run import FINGERPRINT, Run

Floats = NDArray[np.float32]
Update = Callable[[Floats, Floats], tuple[Floats, Floats]]  # gradient (k,), state (s, k) -> change at rate 1, state

FILE = "online.json"  # in a run folder: how its users learn
FORMAT = 1  # of the file
USER_FORMAT = 1  # of the bytes of a user
MARK = b"fcu"  # which they begin with
HEAD, CHECK = struct.Struct(f"<3sB{FINGERPRINT}sHHI"), struct.Struct("<I")
MOST_NUMBERS, MOST_SEEN = (1 << 16) - 1, (1 << 32) - 1  # of a vector, and texts that are counted
BATCH_SIZE = 200  # texts that are compared at once
DECAY, TINY = 0.95, 1e-6
FASTEST = 1e9  # the highest rate: a step at it is a finite float, and no vector is so long


def _sgd(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    return -gradient, state


def _adagrad(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    state = state + gradient**2
    return -gradient / (np.sqrt(state[0]) + TINY), state


def _adadelta(gradient: Floats, state: Floats) -> tuple[Floats, Floats]:
    squares = DECAY * state[0] + (1 - DECAY) * gradient**2
    change = -gradient * np.sqrt((state[1] + TINY) / (squares + TINY))
    return change, np.stack([squares, DECAY * state[1] + (1 - DECAY) * change**2])


# The rows of state that each keeps, and how it moves.
OPTIMISERS: dict[str, tuple[int, Update]] = {
    "adagrad": (1, _adagrad),
    "adadelta": (2, _adadelta),
    "sgd": (0, _sgd),
}
MOST_ROWS = max(rows for rows, _ in OPTIMISERS.values())


@dataclass(frozen=True)
class LearningRule:
    """How users are learned: an optimiser of `OPTIMISERS`, its rate, and how far a vector may `reach`.

    A vector is at most `reach` times as long as the longest of training. With `reach` 0, as in chapter 5 of the thesis,
    there is no bound, and a few unusual texts can move a user to where the model was never trained.
    """

    optimiser: str = "adagrad"
    rate: float = 0.1
    reach: float = 2.0

    def __post_init__(self) -> None:
        choose("online optimiser", str(self.optimiser), OPTIMISERS)
        number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if not number or not 0 <= self.rate <= FASTEST:
            raise UserError(f"the online rate is {self.rate!r:.40}; it must be a number from 0 to {FASTEST:g}")
        limits.NUMBER_LIMITS["reach"].check("the online reach", self.reach)

    @classmethod
    def load(cls, folder: str | Path) -> "LearningRule":
        """Read the rule of a run folder, where `tune-online` put it, or return the default.

        Raises:
            UserError: The file is damaged.
        """
        path = Path(folder) / FILE
        if not path.exists():
            return cls()
        values = files.read_versioned(path, FORMAT)
        try:
            return cls(**values)
        except TypeError as error:  # a name that no rule has
            raise UserError(f"{path}: not a rule of online learning ({error})") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def __str__(self) -> str:
        reach = "" if self.reach == LearningRule.reach else f", reach {self.reach:g}"
        return f"{self.optimiser} {self.rate:g}{reach}"

    def save(self, run: Run) -> None:
        """Store the rule in the folder of `run`."""
        files.write_versioned(run.folder / FILE, asdict(self), FORMAT)


@dataclass(frozen=True)
class User:
    """A user: `vector` (k,), optimiser `state` (s, k), the number of texts `seen`, and the last of them.

    `fingerprint` identifies the run with which the user was learned; empty if it is unknown.

    Raises:
        UserError: A value that learning cannot produce, such as a number that is not finite.
    """

    vector: Floats
    state: Floats
    seen: int = 0
    history: History = field(default_factory=History)
    fingerprint: bytes = b""

    def __post_init__(self) -> None:
        if fault := next((text for wrong, text in self._faults() if wrong), None):
            raise UserError(f"not a user: {fault}")

    def _faults(self) -> Iterator[tuple[bool, str]]:
        vector, state = self.vector, self.state
        size, rows = vector.shape, state.shape
        yield {vector.dtype, state.dtype} != {np.dtype(np.float32)}, "its numbers must be 32-bit floats"
        yield len(size) != 1 or not 0 < size[0] <= MOST_NUMBERS, f"a vector of shape {size}"
        yield rows[1:] != size or rows[0] > MOST_ROWS, f"state of shape {rows} of a vector of shape {size}"
        yield not np.isfinite(vector).all(), "its vector has numbers that are not finite"
        yield not (np.isfinite(state) & (state >= 0)).all(), "its state has numbers that are negative or not finite"
        yield not 0 <= self.seen <= MOST_SEEN, f"it has seen {self.seen:,} texts; at most {MOST_SEEN:,} are counted"
        yield len(self.fingerprint) not in (0, FINGERPRINT), f"a fingerprint of {len(self.fingerprint)} bytes"

    @classmethod
    def new(cls, run: Run) -> "User":
        """Return a new user, who starts as the unknown user of `run`."""
        return Learner(run).new()

    def check(self, run: Run) -> None:
        """Raise a `UserError` if the user was learned with another run than `run`."""
        if self.fingerprint and run.fingerprint and self.fingerprint != run.fingerprint:
            raise UserError(
                f"this user belongs to another run (fingerprint {self.fingerprint.hex()[:8]}..., this run is "
                f"{run.fingerprint.hex()[:8]}...); learn the person again from their texts"
            )
        if self.vector.shape != (run.config.model.variable_size,):
            raise UserError(
                f"a user of {self.vector.size} numbers; those of {run.folder} have {run.config.model.variable_size}"
            )

    def to_bytes(self) -> bytes:
        """Return the user as bytes: 32, 4 for each number, and the texts of the history."""
        texts = [text.encode() for text in self.history.texts]
        numbers = np.concatenate([self.vector, self.state.ravel()]).astype("<f4").tobytes()
        sizes = len(self.vector), len(self.state), self.seen
        parts = [HEAD.pack(MARK, USER_FORMAT, self.fingerprint, *sizes), numbers]
        parts += [struct.pack("<I", len(text)) + text for text in texts]
        content = b"".join(parts)
        return content + CHECK.pack(zlib.crc32(content))

    @classmethod
    def from_bytes(cls, content: bytes) -> "User":
        """Return the user of `to_bytes`.

        Raises:
            UserError: The bytes were altered, cut or extended, or hold values that a user cannot have.
        """
        if content[: len(MARK)] == MARK and len(content) > len(MARK):
            check_format(content[len(MARK)], USER_FORMAT, "this user")
        content, check = content[: -CHECK.size], content[-CHECK.size :]
        if len(content) < HEAD.size or content[: len(MARK)] != MARK or CHECK.pack(zlib.crc32(content)) != check:
            raise UserError("not a user as it was saved (truncated or altered)")
        try:
            _, _, fingerprint, size, rows, seen = HEAD.unpack_from(content)
            numbers = np.frombuffer(content, "<f4", size * (1 + rows), HEAD.size).astype(np.float32)
            texts, at = [], HEAD.size + numbers.nbytes
            while at < len(content):
                (length,) = struct.unpack_from("<I", content, at)
                if at + 4 + length > len(content):
                    raise ValueError("cut off")
                texts.append(content[at + 4 : at + 4 + length].decode())
                at += 4 + length
            vector, state = numbers[:size], numbers[size:].reshape(rows, size)
        except (struct.error, ValueError) as error:
            raise UserError(f"not a user as it was saved ({error})") from None
        return cls(vector, state, seen, History(tuple(texts)), fingerprint if any(fingerprint) else b"")


class Learner:
    """Learns users online, for one run and one rule. It never changes, so threads can share it.

    It computes in float32 whatever the precision of the run: for bfloat16 products PyTorch keeps megabytes of memory
    for every length of text.
    """

    def __init__(self, run: Run, rule: LearningRule | None = None, unknown: str = "error") -> None:
        """Use `rule`, by default that of the run; `unknown` as in `Run.prepare`.

        Raises:
            UserError: The run does not tell users apart.
        """
        self.run, self.rule, self.variable = run, rule or LearningRule.load(run.folder), user_variable(run)
        self.unknown_policy = unknown
        self.columns = run.schema.columns(without=self.variable.source_column)  # of the contexts of a text
        self.rows, self.update = OPTIMISERS[self.rule.optimiser]
        column = run.schema.categories.index(self.variable)
        encoder = run.model.encoder
        assert encoder is not None
        table = encoder.tables[column].detach().cpu().numpy()
        self.unknown_vector: Floats = table[0].copy()
        self.packed = run.model.backbone.pack()
        self.longest = self.rule.reach * float(np.linalg.norm(table, axis=1).max()) if self.rule.reach else math.inf

    def new(self) -> User:
        """Return a new user."""
        state = np.zeros((self.rows, len(self.unknown_vector)), np.float32)
        return User(self.unknown_vector, state, fingerprint=self.run.fingerprint)

    def learn(
        self, users: Sequence[User], texts: Sequence[str], contexts: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[User], NDArray[np.float64]]:
        """Learn a text of each user.

        Args:
            users: B different users.
            texts: A text of each; a text that is longer than the run reads is cut, as in training.
            contexts: Values of the other context columns of each text, as in `Completer.begin`.

        Returns:
            The users after their texts, and the nats (B,) of the texts before.

        Raises:
            UserError: A text, a context or a user is not valid; then no user is learned.
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
            if user.state.shape != (self.rows, len(self.unknown_vector)):
                raise UserError(
                    f"a user with {len(user.state)} rows of state; {self.run.folder} learns by {self.rule.optimiser}, "
                    f"which has {self.rows}"
                )
        vectors = np.stack([user.vector for user in users])
        nats, gradients = self.gradients(vectors, texts, rows)
        pairs = zip(users, texts, gradients, strict=True)
        return [self.updated_user(user, text, gradient) for user, text, gradient in pairs], nats

    def gradients(
        self, vectors: Floats, texts: Sequence[str], contexts: Sequence[Mapping[str, Any]]
    ) -> tuple[NDArray[np.float64], Floats]:
        """Return nats (B,) of the texts of users with `vectors` (B, k), and their gradients (B, k)."""
        with torch.enable_grad():
            own = torch.tensor(vectors, device=self.run.device, requires_grad=True)
            nats = self._nats(own, texts, contexts)
            (gradients,) = torch.autograd.grad(nats.sum(), own)
        return nats.detach().double().cpu().numpy(), gradients.cpu().numpy()

    def nats(
        self, vectors: Floats, texts: Sequence[str], contexts: Sequence[Mapping[str, Any]] | None = None
    ) -> NDArray[np.float64]:
        """Return nats (B,) of the texts of users with `vectors` (B, k), or of one user (1, k)."""
        with torch.inference_mode():
            own = torch.tensor(vectors, device=self.run.device).expand(len(texts), -1)
            return self._nats(own, texts, contexts or [{}] * len(texts)).double().cpu().numpy()

    def largest_gains(self, user: User, texts: Sequence[str], count: int = 5) -> list[tuple[str, float]]:
        """Return the `count` texts whose log probability rose most since `user` was new, and by how many nats.

        References:
            Thesis 2018, tables 5.3 to 5.5.
        """
        user.check(self.run)
        parts = [texts[at : at + BATCH_SIZE] for at in range(0, len(texts), BATCH_SIZE)]
        gained = [self.nats(self.unknown_vector[None], part) - self.nats(user.vector[None], part) for part in parts]
        rises = np.concatenate(gained) if gained else np.zeros(0)
        return [(texts[row], float(rises[row])) for row in np.argsort(-rises, kind="stable")[:count]]

    def _nats(self, own: torch.Tensor, texts: Sequence[str], contexts: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        batch = self.run.batch(self.run.read(texts, contexts, unknown=self.unknown_policy), np.arange(len(texts)))
        conditioning = self.run.model.condition(batch.context, {self.variable.name: own}, self.packed)
        nats: torch.Tensor = self.run.model(batch, conditioning)
        return nats.sum(1)

    def updated_user(self, user: User, text: str, gradient: Floats) -> User:
        """Return the user after a `text` with that gradient; `UserError` if a number would not be finite."""
        known = user.fingerprint or self.run.fingerprint  # whoever learns from a run is its user from then on
        history = replace(user.history, texts=(*user.history.texts, self.run.tokenizer.normalize_fully(text)))
        seen: dict[str, Any] = {"seen": user.seen + 1, "history": history, "fingerprint": known}
        if not np.isfinite(gradient).all():
            return replace(user, **seen)  # a text that the model cannot read without overflow teaches nothing
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is refused
            change, state = self.update(gradient, user.state)
            vector = user.vector + self.rule.rate * change
            length = float(np.linalg.norm(vector))
            vector = vector * (self.longest / length) if length > self.longest else vector
        try:
            return replace(user, **seen, vector=vector.astype(np.float32), state=state.astype(np.float32))
        except UserError as error:
            raise UserError(
                f"nothing can be learned of {text[:SHOWN]!a} by {self.rule} ({error}); the user stays as before"
            ) from None


def learn_one(run: Run, user: User, text: str, context: Mapping[str, Any] | None = None) -> User:
    """Return the user after one more text, by the rule of the run.

    Args:
        run: The run with which the user was learned.
        user: The user before.
        text: What the user wrote; a `Notice` says if it is cut after `max_tokens` tokens, as in training.
        context: Values of the other context columns.

    Raises:
        UserError: The text, the context or the user is not valid.
    """
    (after,), _ = Learner(run).learn([user], [text], None if context is None else [context])
    report_truncation(run, text)
    return after


def report_truncation(run: Run, text: str) -> None:
    """Give a `Notice` if a text that is learned is cut after `max_tokens` tokens, as in training."""
    limit = run.config.data.max_tokens
    report_truncated(truncated_mask([text], run.tokenizer, limit), "the text learned", limit)


def distinguishes_users(run: Run) -> bool:
    """Return whether the run tells users apart, and its model is adapted to them."""
    return bool(run.config.data.user) and run.model.encoder is not None


def user_variable(run: Run) -> Variable:
    """Return the context variable of the user, or raise a `UserError` for a run without one."""
    name = run.config.data.user
    if not name:
        raise UserError(f"{run.folder}: it does not tell users apart; train it with --user COLUMN")
    if run.model.encoder is None:
        raise UserError(f"{run.folder}: users change nothing in it; train it with --adapt factor or concat")
    return run.schema.variable(name)
