"""Prompts are read from columns and from the earlier texts of a user."""

import itertools
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import HISTORY_COLUMN, Config
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.readers import join_segments
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.runs.run import Run

START = "<s>"
ROWS: list[dict[str, Any]] = [
    {"text": "abc", "title": "ba", "dialogue": ["a", "", "cb"]},
    {"text": "b", "title": None, "dialogue": []},
    {"text": "ca", "title": "", "dialogue": None},
    {"text": "b", "title": "xaz", "dialogue": ["c"]},
]


def texts_of(corpus: Corpus, prompt: int = 0) -> list[str]:
    ids: Ragged = corpus.prompts[prompt]
    tokens = corpus.tokenizer.decode(ids.values.tolist())
    return ["".join(tokens[begin:end]) for begin, end in itertools.pairwise(ids.offsets.tolist())]


def config_of(**options: Any) -> Config:
    return Config.of(tokenizer="char", min_count=1, min_context_count=1, min_user_count=1, **options)


def test_prompts_are_texts_or_lists_of_texts_each_after_a_start_token() -> None:
    config = config_of(context=("title:prompt", "dialogue:prompt"))
    for source in (ROWS, pa.Table.from_pylist(ROWS)):
        corpus = prepare(source, config)
        assert texts_of(corpus) == ["<s>ba", "", "", "<s><unk>a<unk>"]
        assert texts_of(corpus, 1) == ["<s>a<s>cb", "", "", "<s>c"]
        assert corpus.read_lengths.tolist() == [4 + 3 + 5, 2, 3, 2 + 4 + 2]
    assert [variable.describe() for variable in corpus.schema.variables] == ["title (prompt)", "dialogue (prompt)"]


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=5),
    st.integers(1, 12),
)
def test_long_prompts_retain_their_last_tokens(segments: list[list[int]], max_tokens: int) -> None:
    joined = [token for segment in segments if segment for token in [0, *segment]]
    actual = join_segments(segments, max_tokens, 0)
    assert actual[-max_tokens:] == joined[-max_tokens:]
    assert len(actual) <= max_tokens + 1
    assert not actual or actual[0] == 0
    assert all(first or second for first, second in itertools.pairwise(actual))


def test_prompts_of_pieces_are_those_of_the_trained_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 4)
    rows = [{"text": "the sea and the sun", "title": "the sea"}, {"text": "the sand", "title": "unseen sands"}] * 5
    config = Config.of(tokenizer="bpe", context=("title:prompt",), max_tokens=8)
    corpus = prepare(rows, config)
    run = Run(tmp_path, config, corpus.tokenizer, corpus.schema)
    again = run.prepare(rows)
    assert corpus.prompts[0].values.tolist() == again.prompts[0].values.tolist()
    assert corpus.prompts[0].offsets.tolist() == again.prompts[0].offsets.tolist()
    expected = corpus.tokenizer.encode(corpus.tokenizer.split("unseen sands"))[-4:]
    assert again.prompts[0].select(np.array([1])).values.tolist() == [corpus.tokenizer.specials.start, *expected]


def test_a_prompt_that_is_not_a_text_is_an_error() -> None:
    for value in (3, 2.5, ["a", 3]):
        with pytest.raises(UserError, match=r"row 2: title is .{,20}, not a text or a list of texts"):
            prepare([{"text": "a", "title": "b"}, {"text": "a", "title": value}], config_of(context=("title:prompt",)))
    with pytest.raises(UserError, match="no column 'title'"):
        prepare([{"text": "a"}], config_of(context=("title:prompt",)))


@pytest.mark.parametrize(("max_tokens", "length"), [(50, 100), (300, 150)])
def test_of_a_prompt_of_a_megabyte_the_last_tokens_are_read(max_tokens: int, length: int) -> None:
    config = config_of(context=("title:prompt",), max_tokens=max_tokens)
    corpus = prepare([{"text": "ab", "title": "b" * 2**20 + "a"}], config)
    assert texts_of(corpus) == [f"<s>{'b' * (length - 1)}a"]


def test_selected_corpora_have_the_same_prompts(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    config = config_of(context=("title:prompt", "dialogue:prompt"))
    corpus = prepare(path, config)
    assert texts_of(corpus, 1) == ["<s>a<s>cb", "", "", "<s>c"]
    selected = corpus.select(np.array([3, 0]))
    assert texts_of(selected, 1) == ["<s>c", "<s>a<s>cb"]
    assert texts_of(corpus.without_context(corpus.schema), 1) == [""] * 4
    (padded, *_) = (prompt.padded() for prompt in corpus.context(np.array([1, 3])).prompts)
    assert padded.tolist() == [[-1] * 4, corpus.prompts[0].values[-4:].tolist()]


def test_the_batches_of_texts_with_prompts_have_at_most_the_specified_tokens() -> None:
    rows = [{"text": "a" * (row % 7), "title": "b" * (row % 11)} for row in range(50)]
    corpus = prepare(rows, config_of(context=("title:prompt",)))
    batches = corpus.batches(40, seed=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(50))
    assert all(corpus.read_lengths[rows].max() * len(rows) <= 40 or len(rows) == 1 for rows in batches)


def make_log(seed: int, count: int = 40) -> list[dict[str, Any]]:
    """Return the rows of four users, without order; some have no user or no time."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        text = "".join(generator.choices("abc", k=generator.randrange(5)))
        user = generator.choice(["ann", "bob", "eve", "joe", None])
        day, hour = generator.randrange(1, 5), generator.choice(["08:00", "09:30", "09:30+02:00"])
        rows.append(
            {"text": text, "user": user, "time": f"2026-11-0{day}T{hour}" if generator.random() < 0.9 else None}
        )
    return rows


def earlier_texts_by_loops(rows: list[dict[str, Any]], count: int) -> list[str]:
    """Return the earlier texts of each row; a time without a zone is in UTC, and a missing time is first."""

    def minutes(row: dict[str, Any]) -> float:
        if row.get("time") is None:
            return -1.0
        day, hour, minute = (int(row["time"][begin : begin + 2]) for begin in (8, 11, 14))
        return (day * 24 + hour - (2 if "+" in row["time"] else 0)) * 60 + minute

    results = []
    for position, row in enumerate(rows):
        earlier = [
            (minutes(other), number, other["text"])
            for number, other in enumerate(rows)
            if other["user"] == row["user"] and (minutes(other), number) < (minutes(row), position)
        ]
        texts = [text for _, _, text in sorted(earlier)][-count:]
        results.append("".join(START + text for text in texts if text) if row["user"] else "")
    return results


@pytest.mark.parametrize("count", [1, 3])
def test_earlier_texts_are_those_of_the_user_in_order_of_time(count: int) -> None:
    rows = make_log(seed=count)
    by_time = prepare(rows, config_of(user="user", time="time", prompt_history=count))
    assert texts_of(by_time) == earlier_texts_by_loops(rows, count)
    assert len(set(texts_of(by_time))) > 5
    for value in ("11-02-2026 11.35", "soon", [1]):
        with pytest.raises(UserError, match=r"row 2: time is .*; expected a number or a time such as 2026"):
            prepare([rows[0], {**rows[1], "time": value}], config_of(user="user", time="time", prompt_history=count))
    moments = [row["time"] and datetime.fromisoformat(row["time"]).replace(tzinfo=None) for row in rows]
    config, texts = config_of(user="user", time="time", prompt_history=count), list[list[str]]()
    for pattern in ("%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"):
        later = [moment and (moment + timedelta(days=11)).strftime(pattern) for moment in moments]  # on days 12 to 15
        corpus = prepare([{**row, "time": moment} for row, moment in zip(rows, later, strict=True)], config)
        texts.append(texts_of(corpus))
    assert texts[0] == texts[1] == texts[2]
    without_times = [{"text": row["text"], "user": row["user"]} for row in rows]
    by_row = prepare(without_times, config_of(user="user", prompt_history=count))
    assert texts_of(by_row) == earlier_texts_by_loops(without_times, count)


def test_a_column_of_earlier_texts_replaces_those_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 6)
    config = config_of(user="user", prompt_history=2, max_tokens=4)
    rows = [{"text": "abc", "user": "ann"}, {"text": "cccccc", "user": "ann"}, {"text": "b", "user": "ann"}]
    corpus = prepare(rows, config)
    assert texts_of(corpus) == ["", "<s>abc", "<s>c<s>cccc"]  # `max_tokens` cuts the second text
    run = Run(tmp_path, config, corpus.tokenizer, corpus.schema)
    assert texts_of(run.prepare(rows)) == texts_of(corpus)
    previous = {HISTORY_COLUMN: ["ba", "abc", "cccccc"]}
    assert texts_of(run.read(["b"], [previous])) == ["<s>c<s>cccc"]
    assert texts_of(run.read(["b"] * 2, [{"user": "ann"}] * 2)) == ["", ""]
    assert texts_of(run.prepare([{**row, HISTORY_COLUMN: "cb"} for row in rows])) == ["<s>cb"] * 3


def test_earlier_texts_require_a_column_of_users() -> None:
    with pytest.raises(UserError, match="prompt_history requires the column with the author of each text; set user"):
        Config.of(prompt_history=2)
