"""Progressive evaluation of completion: predict each text of a user in order of time, judge the result, then learn it.

A prefix of each text is drawn, uniformly among those with at least two graphemes typed and one to come (thesis, section
5.4.1). The draw is a hash of seed, user, text and position in the stream, so that all systems, machines and interrupted
replays complete the same prefixes.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from factorcell import files, limits
from factorcell.completion.search import Suggestion
from factorcell.completion.texts import check_text
from factorcell.config import Config, UserError
from factorcell.data.cache import report_truncated
from factorcell.data.canonical import canonical
from factorcell.data.tables import open_table
from factorcell.data.tokenizer import GRAPHEME, new_tokenizer
from factorcell.data.tokens import truncated_mask
from factorcell.data.values import category_name, is_missing, short_repr, to_number, to_time
from factorcell.progress import progress_bar

TYPED, LEFT = 2, 1  # characters that a prefix has at least, and that are left to complete
SUGGESTION_COUNT = 10  # suggestions that are asked for

Row = dict[str, Any]


class System:
    """One way to complete. Its state of a user is a value, so that one system serves many streams."""

    def start(self, user: str) -> Any:
        """Return the state of a user who has written nothing."""
        return None

    def suggest(self, held: Any, prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        """Return at most `k` whole texts, the best first; `row` has every column except the text."""
        raise NotImplementedError

    def nats(self, held: Any, row: Mapping[str, Any]) -> tuple[float, int] | None:
        """Return nats and targets of the text before it is learned; None for a system that is not a language model."""
        return None

    def learn(self, held: Any, row: Mapping[str, Any]) -> Any:
        """Return the state of the user after the text."""
        return held


@dataclass(frozen=True)
class Stream:
    """The rows of one user in order of time, and the prefix to complete of each, None where none is judged."""

    user: str
    rows: tuple[Row, ...]
    prefixes: tuple[str | None, ...]

    @property
    def judged_prefixes(self) -> list[tuple[int, int]]:
        """Position and prefix length of the texts that are judged."""
        return [(place, _length(prefix)) for place, prefix in enumerate(self.prefixes) if prefix is not None]


@dataclass(frozen=True)
class PrefixDraw:
    """Draws the texts that are judged, about one of `every`, and their prefixes, by a hash of `seed` and text."""

    every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        limits.check(every=self.every, seed=self.seed)

    def prefix(self, user: str, text: str, place: int) -> str | None:
        """Return the prefix to complete of the text at `place` in a stream; None if it is too short or not drawn."""
        marks = GRAPHEME.findall(text)
        choices = len(marks) - LEFT - TYPED + 1
        digest = hashlib.sha256(json.dumps([self.seed, user, text, place]).encode()).digest()
        if choices < 1 or int.from_bytes(digest[:8], "big") % self.every:
            return None
        return "".join(marks[: TYPED + int.from_bytes(digest[8:16], "big") % choices])


ALL = PrefixDraw()


def read_streams(
    source: Any,
    config: Config,
    *,
    user_column: str = "user",
    time_column: str = "time",
    context_columns: Sequence[str] = (),
    max_rows_per_user: int | None = None,
    draw: PrefixDraw = ALL,
) -> list[Stream]:
    """Read the streams of a table, by user: columns of the text, `user`, `moment` (the time) and `others`.

    Texts are read as by a run with `config`, in canonical form; the first `most_rows` of each user are kept. A `Notice`
    counts the texts that the run cuts after `max_tokens` tokens, which are judged and learned up to there.

    Raises:
        UserError: A column is missing or a value cannot be read.
    """
    limits.check(rows_per_user=max_rows_per_user)
    data, tokenizer = config.data, new_tokenizer(config)
    table = open_table(source)
    columns = tuple(dict.fromkeys((data.text, user_column, time_column, *context_columns)))
    people: defaultdict[str, list[tuple[float, Row]]] = defaultdict(list)
    number = 0
    for chunk in table.chunks(columns):
        for values in zip(*(chunk[name] for name in columns), strict=True):
            row, number = dict(zip(columns, values, strict=True)), number + 1
            where = f"{table.name} row {number}"
            if not isinstance(row[data.text], str):
                raise UserError(f"{where}: {data.text} is {short_repr(row[data.text])}, not a text")
            check_text(row[data.text], f"{where}: {data.text}")
            if is_missing(row[user_column]):
                raise UserError(f"{where}: {user_column} is missing; each row needs somebody who wrote it")
            row[data.text] = canonical(tokenizer.normalize_fully(row[data.text]))
            people[category_name(row[user_column])].append((_seconds(row[time_column], f"{where}: {time_column}"), row))
    streams = []
    for name in sorted(people):
        ordered = sorted(people[name], key=lambda one: one[0])  # texts of one moment stay as they stand in the table
        rows = tuple(row for _, row in ordered[:max_rows_per_user])
        drawn = (draw.prefix(name, row[data.text], place) for place, row in enumerate(rows))
        streams.append(Stream(name, rows, tuple(drawn)))
    cut = truncated_mask((row[data.text] for stream in streams for row in stream.rows), tokenizer, data.max_tokens)
    report_truncated(cut, table.name, data.max_tokens)
    return streams


def find_seen_prefixes(streams: Sequence[Stream], source: Any, config: Config) -> set[str]:
    """Return the prefixes of the streams with which a text of the table `source` begins."""
    data, table, tokenizer = config.data, open_table(source), new_tokenizer(config)
    wanted = {prefix for stream in streams for prefix in stream.prefixes if prefix is not None}
    lengths = sorted({len(prefix) for prefix in wanted})
    found: set[str] = set()
    for chunk in table.chunks([data.text]):
        for value in chunk[data.text]:
            text = canonical(tokenizer.normalize_fully(str(value)))
            found.update(text[:length] for length in lengths if text[:length] in wanted)
    return found


def rank_of(text: str, suggestions: Sequence[str]) -> int | None:
    """Return the rank of `text` among the suggestions, from 1."""
    return suggestions.index(text) + 1 if text in suggestions else None


def partial_rank_of(text: str, suggestions: Sequence[str]) -> int | None:
    """Return the rank of the first suggestion that is `text` or its first words (Park and Chiba 2017)."""
    return next((rank for rank, one in enumerate(suggestions, 1) if f"{text} ".startswith(f"{one} ")), None)


def replay(
    systems: Mapping[str, System],
    streams: Sequence[Stream],
    path: Path,
    *,
    text_column: str = "text",
    seen_prefixes: Collection[str] | None = None,
    progress: bool = False,
) -> Generator[Row]:
    """Complete, judge and learn every stream with every system; yield the new rows and append them to the file `path`.

    A stream is done whole or not at all, and not again if the file has it. `text` is the column of the texts, `known`
    the prefixes that training texts begin with.

    Raises:
        UserError: The file has rows of other streams.
    """
    done = _done(path, streams)
    pairs = [(stream, name) for stream in streams if stream.judged_prefixes for name in systems]
    todo = [(stream, name) for stream, name in pairs if (name, stream.user) not in done]
    total = sum(len(stream.rows) for stream, _ in todo)
    with progress_bar(total=total, desc="replay", unit="texts", show=progress, leave=None) as bar:
        for stream, name in todo:
            bar.set_postfix_str(f"{name}, user {stream.user[:20]}", refresh=False)
            rows = []
            for row in _followed(systems[name], stream, text_column):
                bar.update()
                if row is not None:
                    seen = None if seen_prefixes is None else stream.prefixes[row["position"]] in seen_prefixes
                    rows.append({"system": name, "user": stream.user, "seen": seen, **row})
            files.append_rows(path, rows)
            yield from rows


def _followed(system: System, stream: Stream, text: str) -> Iterator[Row | None]:
    """Yield how each text was judged, None where it was only learned."""
    held = system.start(stream.user)
    for position, (row, prefix) in enumerate(zip(stream.rows, stream.prefixes, strict=True)):
        judged: Row = {}
        if prefix is not None:
            others = {name: value for name, value in row.items() if name != text}  # nobody can look ahead
            begin = time.perf_counter()
            found = [one.text for one in system.suggest(held, prefix, others, SUGGESTION_COUNT)[:SUGGESTION_COUNT]]
            judged = _judged(row[text], prefix, found, position, time.perf_counter() - begin)
            judged["nats"], judged["targets"] = system.nats(held, row) or (None, None)
        begin = time.perf_counter()
        held = system.learn(held, row)
        yield {**judged, "learn_seconds": time.perf_counter() - begin} if judged else None


def _judged(text: str, prefix: str, found: Sequence[str], position: int, seconds: float) -> Row:
    """Return the figures of one completion.

    `saved` is the number of characters that need not be typed if the first suggestion that is the text or its first
    words is taken at this prefix.
    """
    partial = partial_rank_of(text, found)
    return {
        "position": position,
        "prefix_length": _length(prefix),
        "query_length": _length(text),
        "rank": rank_of(text, found),
        "partial_rank": partial,
        "saved": 0 if partial is None else _length(found[partial - 1]) - _length(prefix),
        "suggest_seconds": seconds,
    }


def _done(path: Path, streams: Sequence[Stream]) -> set[tuple[str, str]]:
    """Return system and user of the streams that the file has whole; remove its other rows."""
    if not path.exists():
        return set()
    rows = files.read_rows(path)
    kept: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        kept[row["system"], row["user"]].append((row["position"], row["prefix_length"]))
    judged = {stream.user: stream.judged_prefixes for stream in streams}
    for (_, user), places in kept.items():
        if places != judged.get(user, [])[: len(places)]:
            raise UserError(
                f"{path}: was begun with other texts or options (user {short_repr(user)}); choose another folder"
            )
    whole = {(name, user) for (name, user), places in kept.items() if len(places) == len(judged[user])}
    files.write_rows(path, (row for row in rows if (row["system"], row["user"]) in whole))
    return whole


def _length(text: str) -> int:
    return len(GRAPHEME.findall(text))


def _seconds(value: Any, where: str) -> float:
    """Return a number as it is, a date or time in seconds; UTC if it has no zone."""
    number, moment = to_number(value), to_time(value)
    if number is not None:
        return number
    if not isinstance(moment, date):
        raise UserError(f"{where} is {short_repr(value)}; it must be a number or a time, as 2026-11-21T18:30")
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):  # its zone puts it before the year 1 or after 9999
        raise UserError(f"{where} is {short_repr(value)}, which is out of range") from None
