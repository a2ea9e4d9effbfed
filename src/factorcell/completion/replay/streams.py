"""Replay of the texts of each user, in order of time, to evaluate completion systems.

The texts of one user are a *stream*. For each text, a system completes a prefix, the replay *judges* the suggestions by
comparing them with the text, and then the system learns the text. The prefix is drawn uniformly among those that have
at least two graphemes and leave at least one grapheme of the text (thesis 2018, section 5.4.1). A hash of the seed, the
user, the text and its position in the stream determines the draw, so all systems, machines and resumed replays complete
the same prefixes.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell.completion.suggestions import Suggestion
from factorcell.completion.texts import check_text
from factorcell.config import HISTORY_COLUMN, MAX_PROMPT_HISTORY, Config
from factorcell.data.columns.values import category_name, is_missing, short_repr, to_seconds
from factorcell.data.private_content import is_public
from factorcell.data.tables.tables import open_table
from factorcell.data.text_folds import same_text
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.data.tokenizers.tokenizer import GRAPHEME
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.progress import progress_bar
from factorcell.options import limits

MIN_TYPED, MIN_REMAINING = 2, 1  # minimum numbers of graphemes of a prefix and of the rest of its text
ESTIMATED_TEXTS = 5  # number of texts from which `estimate_seconds` estimates the duration of a replay
SUGGESTION_COUNT = 10  # maximum number of suggestions that a replay judges

Row = dict[str, Any]


class System:
    """Base class of the completion systems that a replay compares.

    A system stores nothing about users: the replay passes the state of the user to each method. Subclasses implement
    `suggest`. Systems that learn users also implement `start` and `learn`, and language models implement `nats`.
    """

    def start(self, user: str) -> Any:
        """Return the state of a new user."""
        return None

    def suggest(self, state: Any, prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        """Suggest at most `k` whole texts for a typed prefix, the best first.

        Args:
            state: The state of the user.
            prefix: The typed text.
            row: Column -> value of the row whose text is completed, without the text.
            k: Maximum number of suggestions.
        """
        raise NotImplementedError

    def nats(self, state: Any, row: Mapping[str, Any]) -> tuple[float, int] | None:
        """Return the nats and the number of targets of the text in `row`, before the system learns the text.

        Systems that are not language models return None.
        """
        return None

    def learn(self, state: Any, row: Mapping[str, Any]) -> Any:
        """Return the state of the user after learning the text in `row`."""
        return state


@dataclass(frozen=True)
class Stream:
    """The rows of one user in order of time.

    Attributes:
        user: The name of the user.
        rows: The rows.
        prefixes: The prefix of each row; None for a row that systems learn without completing it.
    """

    user: str
    rows: tuple[Row, ...]
    prefixes: tuple[str | None, ...]

    @property
    def judged_prefixes(self) -> list[tuple[int, int]]:
        """For each judged row, its position in the stream and the length of its prefix in graphemes."""
        return [(position, _length(prefix)) for position, prefix in enumerate(self.prefixes) if prefix is not None]


@dataclass(frozen=True)
class PrefixDraw:
    """Selects about one in `every` texts, and draws a prefix of each, by a hash that includes `seed` and the text."""

    every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        limits.make_plain(self)
        limits.check(every=self.every, seed=self.seed)

    def prefix(self, user: str, text: str, position: int) -> str | None:
        """Return a prefix of the text at `position` of a stream; None if the text is too short or not selected."""
        graphemes = GRAPHEME.findall(text)
        choice_count = len(graphemes) - MIN_REMAINING - MIN_TYPED + 1
        digest = hashlib.sha256(json.dumps([self.seed, user, text, position]).encode()).digest()
        selection_hash, length_hash = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
        if choice_count < 1 or selection_hash % self.every:
            return None
        return "".join(graphemes[: MIN_TYPED + length_hash % choice_count])


ALL_TEXTS = PrefixDraw()


def read_streams(
    source: Any,
    config: Config,
    *,
    user_column: str = "user",
    time_column: str | None = "time",
    context_columns: Sequence[str] = (),
    max_rows_per_user: int | None = None,
    draw: PrefixDraw = ALL_TEXTS,
) -> list[Stream]:
    """Read a table and return one stream for each user, sorted by user.

    Texts are normalized as in a run with `config`, and converted to canonical form.

    Args:
        source: A table, such as a path or a list of rows.
        config: The config of the runs that will complete the texts.
        user_column: The column of users.
        time_column: The column of times, which are numbers, dates or times; None: the order of the table.
        context_columns: Other columns to read. If the table lacks the column of earlier texts (`HISTORY_COLUMN`), it
            is computed from the texts of the user.
        max_rows_per_user: Maximum number of rows of each user; the earliest are used.
        draw: Selects the texts to judge and draws their prefixes.

    Raises:
        UserError: A column is missing or a value cannot be read.
    """
    [max_rows_per_user] = limits.check(rows_per_user=max_rows_per_user)
    data, tokenizer = config.data, new_tokenizer(config)
    table = open_table(source)
    time_columns = () if time_column is None else (time_column,)
    columns = tuple(dict.fromkeys((data.text, user_column, *time_columns, *context_columns)))
    reads_history = HISTORY_COLUMN in columns and HISTORY_COLUMN not in table.columns
    if reads_history:
        columns = tuple(column for column in columns if column != HISTORY_COLUMN)
    rows_by_user: defaultdict[str, list[tuple[float, Row]]] = defaultdict(list)
    row_number = 0
    for chunk in table.chunks(columns):
        for values in zip(*(chunk[name] for name in columns), strict=True):
            row, row_number = dict(zip(columns, values, strict=True)), row_number + 1
            where = f"{table.name} row {row_number}"
            if not isinstance(row[data.text], str):
                raise UserError(f"{where}: {data.text} is {short_repr(row[data.text])}, not a text")
            check_text(row[data.text], f"{where}: {data.text}")
            if is_missing(row[user_column]):
                raise UserError(f"{where}: {user_column} is missing; each row needs the user who wrote the text")
            row[data.text] = same_text(tokenizer.normalize(row[data.text]))
            seconds = row_number if time_column is None else to_seconds(row[time_column])
            if seconds is None:
                expected = "it must be a number or a time such as 2026-11-21T18:30, from the year 1 to 9999"
                raise UserError(f"{where}: {time_column} is {short_repr(row[time_column])}; {expected}")
            rows_by_user[category_name(row[user_column])].append((seconds, row))
    streams = []
    for user in sorted(rows_by_user):
        # The sort is stable: rows with the same time stay in the order of the table.
        timed_rows = sorted(rows_by_user[user], key=lambda timed_row: timed_row[0])
        rows = tuple(row for _, row in timed_rows[:max_rows_per_user])
        if reads_history:
            earlier_texts: list[str] = []  # without those that no user learns
            for row in rows:
                row[HISTORY_COLUMN] = earlier_texts[-MAX_PROMPT_HISTORY:]
                if is_public(row[data.text]):
                    earlier_texts.append(row[data.text])
        prefixes = (draw.prefix(user, row[data.text], position) for position, row in enumerate(rows))
        streams.append(Stream(user, rows, tuple(prefixes)))
    return streams


def find_seen_prefixes(streams: Sequence[Stream], source: Any, config: Config) -> set[str]:
    """Return those prefixes of the streams with which at least one text of the table `source` begins."""
    data, table, tokenizer = config.data, open_table(source), new_tokenizer(config)
    prefixes = {prefix for stream in streams for prefix in stream.prefixes if prefix is not None}
    lengths = sorted({len(prefix) for prefix in prefixes})
    seen_prefixes: set[str] = set()
    for chunk in table.chunks([data.text]):
        for value in chunk[data.text]:
            text = same_text(tokenizer.normalize(str(value)))
            seen_prefixes.update(text[:length] for length in lengths if text[:length] in prefixes)
    return seen_prefixes


def rank_of(text: str, suggested_texts: Sequence[str]) -> int | None:
    """Return the rank of `text` among the suggested texts, from 1, or None if it is not among them."""
    return suggested_texts.index(text) + 1 if text in suggested_texts else None


def partial_rank_of(text: str, suggested_texts: Sequence[str]) -> int | None:
    """Return the rank, from 1, of the first suggested text that is `text` or its first words (Park and Chiba 2017)."""
    for rank, suggested_text in enumerate(suggested_texts, 1):
        if f"{text} ".startswith(f"{suggested_text} "):
            return rank
    return None


def replay(
    systems: Mapping[str, System],
    streams: Sequence[Stream],
    path: Path,
    *,
    text_column: str = "text",
    seen_prefixes: Collection[str] | None = None,
) -> Generator[Row]:
    """Return a generator that replays every stream with every system and yields a row for each judged text.

    Each row is also appended to a file, which is emptied first. The rows of a stream are written together, once a
    system has completed the whole stream.

    Args:
        systems: The systems by name.
        streams: The streams.
        path: The file to which rows are written.
        text_column: The column of the texts.
        seen_prefixes: The prefixes with which training texts begin, or None if the training texts are not known.
    """
    pairs = [(stream, name) for stream in streams if stream.judged_prefixes for name in systems]
    files.write_rows(path, ())

    def write() -> Generator[Row]:
        total = sum(len(stream.rows) for stream, _ in pairs)
        with progress_bar(total=total, desc="replay", unit="texts") as bar:
            for stream, name in pairs:
                bar.set_postfix_str(name, refresh=False)
                rows = []
                for row in _replay_stream(systems[name], stream, text_column):
                    bar.update()
                    if row is not None:
                        is_seen = None if seen_prefixes is None else stream.prefixes[row["position"]] in seen_prefixes
                        rows.append({"system": name, "user": stream.user, "seen": is_seen, **row})
                files.append_rows(path, rows)
                yield from rows

    return write()


def _replay_stream(system: System, stream: Stream, text_column: str) -> Iterator[Row | None]:
    """Replay a stream; yield the figures of each judged text, and None for each text that is only learned."""
    state = system.start(stream.user)
    for position, (row, prefix) in enumerate(zip(stream.rows, stream.prefixes, strict=True)):
        figures: Row = {}
        if prefix is not None:
            other_columns = {name: value for name, value in row.items() if name != text_column}
            begin = time.perf_counter()
            suggestions = system.suggest(state, prefix, other_columns, SUGGESTION_COUNT)[:SUGGESTION_COUNT]
            suggested_texts = [suggestion.text for suggestion in suggestions]
            figures = _judge(row[text_column], prefix, suggested_texts, position, time.perf_counter() - begin)
            figures["nats"], figures["targets"] = system.nats(state, row) or (None, None)
        begin = time.perf_counter()
        state = system.learn(state, row)
        yield {**figures, "learn_seconds": time.perf_counter() - begin} if figures else None


def _judge(text: str, prefix: str, suggested_texts: Sequence[str], position: int, seconds: float) -> Row:
    """Compare the suggested texts for `prefix` with `text`; return the figures of this text.

    The figure `saved` is the number of graphemes that the user need not type if the user takes the first suggested
    text that is `text` or its first words.
    """
    partial_rank = partial_rank_of(text, suggested_texts)
    return {
        "position": position,
        "prefix_length": _length(prefix),
        "query_length": _length(text),
        "rank": rank_of(text, suggested_texts),
        "partial_rank": partial_rank,
        "saved": 0 if partial_rank is None else _length(suggested_texts[partial_rank - 1]) - _length(prefix),
        "suggest_seconds": seconds,
    }


def estimate_seconds(
    systems: Mapping[str, System], streams: Sequence[Stream], *, text_column: str = "text"
) -> dict[str, float]:
    """Return the estimated duration of a replay for each system, from the first `ESTIMATED_TEXTS` texts of a stream."""
    judged_streams = [stream for stream in streams if stream.judged_prefixes]
    total, estimates = sum(len(stream.rows) for stream in judged_streams), dict[str, float]()
    for name, system in systems.items():
        for stream in judged_streams[:1]:
            part = Stream(stream.user, stream.rows[:ESTIMATED_TEXTS], stream.prefixes[:ESTIMATED_TEXTS])
            begin = time.perf_counter()
            for _ in _replay_stream(system, part, text_column):
                pass
            estimates[name] = total * (time.perf_counter() - begin) / len(part.rows)
    return estimates


def _length(text: str) -> int:
    """Return the number of graphemes of a text."""
    return len(GRAPHEME.findall(text))
