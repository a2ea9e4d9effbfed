"""Replay of the texts of each user, in order of time, to evaluate completion.

The texts of one user are a *stream*. For each text, every system completes a prefix, its suggestions are compared with
the text, and then the text is learned. The prefix is drawn uniformly among those that have at least two graphemes and
leave at least one grapheme of the text (thesis 2018, section 5.4.1). A hash of the user, the text and its position in
the stream determines the draw, so all systems, runs and machines complete the same prefixes.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from factorcell import bootstrap
from factorcell.completion.blend import Blend, rank_of
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, distinguishes_users, user_variable
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.config import HISTORY_COLUMN, MAX_PROMPT_HISTORY, Config
from factorcell.data.columns.values import category_name, is_missing, read_times
from factorcell.data.counts import POPULARITY
from factorcell.data.private_content import is_public
from factorcell.data.tables.tables import open_table
from factorcell.data.text_folds import check_text, same_text
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.data.tokenizers.tokenizer import GRAPHEME
from factorcell.errors import UserError, check_choice
from factorcell.io.progress import progress_bar
from factorcell.options import limits
from factorcell.runs.run import Run

MIN_TYPED, MIN_REMAINING = 2, 1  # minimum numbers of graphemes of a prefix and of the rest of its text
SEED = 0  # part of the hash that draws prefixes
SUGGESTION_COUNT = 10  # number of suggestions that are compared with a text
# The first number of each range by which queries are grouped; the last range has no end.
RANGES = {"prefix_length": (2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51), "position": (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)}
FIGURES = ("mrr", "success_1", "success_10", "saved")

Row = dict[str, Any]
# Typed prefix, other columns of the row, earlier texts of the user, learned user or None -> suggestions.
System = Callable[[str, Mapping[str, Any], History, User | None], Sequence[Suggestion]]


@dataclass(frozen=True)
class Stream:
    """The rows of one user in order of time."""

    user: str
    rows: tuple[Row, ...]
    prefixes: tuple[str | None, ...]  # of each row; None: the row is learned without being completed


def draw_prefix(user: str, text: str, position: int, every: int = 1) -> str | None:
    """Draw a prefix of a text; None if it is too short, or not among the texts, one in `every`, that a hash selects."""
    graphemes = GRAPHEME.findall(text)
    choice_count = len(graphemes) - MIN_REMAINING - MIN_TYPED + 1
    digest = hashlib.sha256(json.dumps([SEED, user, text, position]).encode()).digest()
    selection_hash, length_hash = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
    if choice_count < 1 or selection_hash % every:
        return None
    return "".join(graphemes[: MIN_TYPED + length_hash % choice_count])


def read_streams(
    source: Any,
    config: Config,
    *,
    user_column: str = "user",
    time_column: str | None = "time",
    context_columns: Sequence[str] = (),
    max_rows_per_user: int | None = None,
    every: int = 1,
) -> list[Stream]:
    """Read a table and return one stream for each user, sorted by user; raise a `UserError` if a value cannot be read.

    Texts are normalized as in a run with `config`, and converted to canonical form.
    The first `max_rows_per_user` rows of each user are used, in the order of `time_column` (numbers, dates or times) or
    of the table. About one in `every` texts gets a prefix. If the table lacks the column of earlier texts
    (`HISTORY_COLUMN`), which may be one of the `context_columns`, it is computed from the texts of the user.
    """
    max_rows_per_user, every = limits.check(rows_per_user=max_rows_per_user, every=every)
    data, tokenizer, table = config.data, new_tokenizer(config), open_table(source)
    columns = list(dict.fromkeys([data.text, user_column, *([time_column] if time_column else []), *context_columns]))
    reads_history = HISTORY_COLUMN in columns and HISTORY_COLUMN not in table.columns
    if reads_history:
        columns.remove(HISTORY_COLUMN)
    rows_by_user: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)  # with the index of each row
    times = list[Any]()
    for chunk in table.chunks(columns):
        for values in zip(*(chunk[name] for name in columns), strict=True):
            row = dict(zip(columns, values, strict=True))
            where = f"{table.name} row {len(times) + 1}"
            check_text(row[data.text], f"{where}: {data.text}")
            if is_missing(row[user_column]):
                raise UserError(f"{where}: {user_column} is missing; each row needs the user who wrote the text")
            row[data.text] = same_text(tokenizer.normalize(row[data.text]))
            rows_by_user[category_name(row[user_column])].append((len(times), row))
            times.append(row[time_column] if time_column else len(times))
    seconds = read_times(times, lambda row: f"{table.name} row {row}: {time_column}")
    streams = []
    for user, numbered_rows in sorted(rows_by_user.items()):
        numbered_rows.sort(key=lambda pair: seconds[pair[0]])  # stable: the order of the table stays for equal times
        rows = tuple(row for _, row in numbered_rows[:max_rows_per_user])
        if reads_history:
            earlier_texts: list[str] = []  # without those that no user learns
            for row in rows:
                row[HISTORY_COLUMN] = earlier_texts[-MAX_PROMPT_HISTORY:]
                if is_public(row[data.text]):
                    earlier_texts.append(row[data.text])
        prefixes = (draw_prefix(user, row[data.text], position, every) for position, row in enumerate(rows))
        streams.append(Stream(user, rows, tuple(prefixes)))
    return streams


def open_systems(
    run: Run,
    names: Sequence[str] | None = None,
    *,
    user_column: str = "user",
    unknown: str = "error",
    seconds: float | None = None,
) -> dict[str, System]:
    """Return completion systems by name, by default all for which the run has users and popular texts.

    The systems are `plain` (the run without online learning, for the unknown user), `mpc` (most popular completion),
    `history` (the earlier texts of the user), `known` (these, then popular texts), `online` (the run with online
    learning) and `blend`. A run that does not distinguish users does not read `user_column`. `seconds` limits the time
    of each search.
    """
    options: dict[str, Any] = {"unknown": unknown, "seconds": seconds}
    completer, columns = Completer(run, **options), context_columns(run, user_column)
    has_users, has_popular_texts = distinguishes_users(run), (run.folder / POPULARITY).exists()
    factories: dict[str, Callable[[], System]] = {
        "plain": lambda: model_system(completer, columns, User.new(run) if has_users else None),
        "mpc": lambda: popular_texts_system(Popularity.from_run(run)),
        "history": lambda: lambda prefix, row, history, user: history.complete(prefix, SUGGESTION_COUNT),
        "known": lambda: known_texts_system(Popularity.from_run(run)),
        "online": lambda: model_system(completer, columns),
        "blend": lambda: model_system(Blend(run, Popularity.from_run(run), **options), columns),
    }
    if names is None:
        is_possible = dict.fromkeys(("mpc", "known"), has_popular_texts)
        is_possible |= {"online": has_users, "blend": has_users and has_popular_texts}
        names = [name for name in factories if is_possible.get(name, True)]
    for name in names:
        check_choice("system", name, factories)
        if name in ("online", "blend"):
            user_variable(run)  # raises an error if the run does not distinguish users
    return {name: factories[name]() for name in names}


def model_system(suggester: Completer, columns: Sequence[str] = (), new_user: User | None = None) -> System:
    """Return a system that completes with a model in the context of `columns`, for `new_user` or the learned user."""
    has_users = distinguishes_users(suggester.run)

    def suggest(prefix: str, row: Mapping[str, Any], history: History, user: User | None) -> list[Suggestion]:
        context = {name: row[name] for name in columns}
        typing_user = (new_user or user) if has_users else None
        typed_text = suggester.type_text(suggester.begin(typing_user, context), prefix)
        return suggester.suggest(typed_text, SUGGESTION_COUNT).suggestions

    return suggest


def popular_texts_system(popularity: Popularity) -> System:
    """Return a system that completes with popular texts."""
    return lambda prefix, row, history, user: popularity.complete(prefix, SUGGESTION_COUNT)


def known_texts_system(popularity: Popularity) -> System:
    """Return a system without a model, which completes with the earlier texts of the user, then with popular texts."""

    def suggest(prefix: str, row: Mapping[str, Any], history: History, user: User | None) -> list[Suggestion]:
        earlier = history.complete(prefix, SUGGESTION_COUNT)
        texts = {suggestion.text for suggestion in earlier}
        popular = popularity.complete(prefix, SUGGESTION_COUNT)
        return [*earlier, *(suggestion for suggestion in popular if suggestion.text not in texts)]

    return suggest


def context_columns(run: Run, user_column: str) -> list[str]:
    """Return the context columns that `run` reads when it completes texts of the users in `user_column`."""
    return run.schema.columns(without=run.config.data.user if distinguishes_users(run) else user_column)


def replay(
    systems: Mapping[str, System], streams: Sequence[Stream], text_column: str, learner: Learner | None = None
) -> Iterator[Row]:
    """Complete the prefixes of all streams with every system, and learn each text after its prefix was completed.

    Without a `learner`, the systems get no user.

    Yields:
        For each completed text and system: `system`, `user`, `position` of the text in the stream, `prefix_length` and
        `query_length` in graphemes, the `rank` of the text among the suggestions, from 1, or None, `saved`, and
        `seconds`. `saved` is the number of graphemes that the user need not type if the user takes the first suggestion
        that is the text or its first words (Park and Chiba 2017).
    """
    judged_streams = [stream for stream in streams if any(prefix is not None for prefix in stream.prefixes)]
    with progress_bar(total=sum(len(stream.rows) for stream in judged_streams), desc="replay", unit="texts") as bar:
        for stream in judged_streams:
            history, user = History(), None if learner is None else learner.new()
            for position, (row, prefix) in enumerate(zip(stream.rows, stream.prefixes, strict=True)):
                text = row[text_column]
                for name, suggest in systems.items():
                    if prefix is None:
                        break
                    begin = time.perf_counter()
                    suggestions = suggest(prefix, row, history, user)
                    seconds = time.perf_counter() - begin
                    texts = [suggestion.text for suggestion in suggestions][:SUGGESTION_COUNT]
                    beginnings = [suggested for suggested in texts if f"{text} ".startswith(f"{suggested} ")]
                    yield {
                        "system": name,
                        "user": stream.user,
                        "position": position,
                        "prefix_length": _length(prefix),
                        "query_length": _length(text),
                        "rank": rank_of(text, texts),
                        "saved": _length(beginnings[0]) - _length(prefix) if beginnings else 0,
                        "seconds": seconds,
                    }
                history = history.add(text) if is_public(text) else history
                if learner is not None and user is not None:
                    context = {name: row[name] for name in learner.columns}
                    (user,), _ = learner.learn([user], [text], [context])
                bar.update()


def _length(text: str) -> int:
    return len(GRAPHEME.findall(text))


def summarise(rows: Sequence[Row], seen_users: Mapping[str, bool] | None = None) -> list[Row]:
    """Compute the figures of each system, for all texts and for groups of texts.

    `rows` are those of `replay`, and `seen_users` says whether the model has a vector of a user.

    Returns:
        A row for each group and system: `by` and `value` name the group, `queries` and `users` count its texts and
        users. `mrr` is the mean reciprocal rank, `success_1` and `success_10` are the shares of texts that are the
        first and one of the suggestions, `saved` is the mean of saved graphemes. `mrr_difference` is the difference to
        the first system. The 95 % intervals have the suffixes `_low` and `_high`; they are None for fewer than ten
        users. The rows of all texts have the median `milliseconds` of a completion.
    """
    if not rows:
        raise UserError("replay: no text was completed; expected texts of at least three characters")
    groups = {("all", "all"): np.arange(len(rows))}  # kind and value of a group -> indices of its rows
    for name, starts in RANGES.items():
        labels = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in pairwise(starts)]
        labels.append(f"{starts[-1]}+")
        indices = np.searchsorted(starts, [row[name] for row in rows], side="right") - 1
        groups |= {(name, labels[index]): np.flatnonzero(indices == index) for index in np.unique(indices).tolist()}
    if seen_users:
        labels = ["with a vector" if seen_users[row["user"]] else "without a vector" for row in rows]
        groups |= {("user", label): np.flatnonzero(np.array(labels) == label) for label in dict.fromkeys(labels)}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    users = {user: place for place, user in enumerate(dict.fromkeys(row["user"] for row in rows))}
    summary = []
    for (by, value), members in groups.items():
        sums = np.zeros((len(users), len(systems), len(FIGURES) + 1))
        for row in map(rows.__getitem__, members.tolist()):
            rank = row["rank"]
            figures = (1 / rank if rank else 0.0, rank == 1, rank is not None, row["saved"], 1)
            sums[users[row["user"]], systems.index(row["system"])] += figures
        user_count = int((sums[:, 0, -1] > 0).sum())
        totals = bootstrap.resampled_sums(sums.reshape(len(users), -1)).reshape(-1, *sums.shape[1:])
        with np.errstate(invalid="ignore"):  # a draw may have no user of the group
            points = totals[..., :-1] / totals[..., -1:]
        for index, system in enumerate(systems):
            entry = {"by": by, "value": value, "queries": int(totals[0, 0, -1]), "users": user_count, "system": system}
            for place, name in enumerate(FIGURES):
                entry |= bootstrap.percentile_interval(points[:, index, place], user_count).to_row(name)
            if index:
                difference = points[:, index, 0] - points[:, 0, 0]
                entry |= bootstrap.percentile_interval(difference, user_count).to_row("mrr_difference")
            if by == "all":
                seconds = [row["seconds"] for row in rows if row["system"] == system]
                entry["milliseconds"] = 1000 * float(np.median(seconds))
            summary.append(entry)
    return summary
