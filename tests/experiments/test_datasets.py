"""Readers of the data sets, on small files in the form of each source, and on wrong files."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corpora
from experiments.datasets import agnews, commonvoice9, hotels, reading
from experiments.datasets.repository import Repository
from experiments.datasets.sets import SETS
from factorcell.errors import UserError
from tests.experiments.repositories import Files, commit_files, git, table, zip_file

HOTEL = """<Hotel Name>Sea View
<Hotel Address><span property="v:locality">Makena</span>
<URL>/Hotel_Review-Makena.html

<Author>ann
<Content>We loved it.
<Overall>5
<Review ID>UR1

<Author>bob
<Content>Not for us.
<Overall>-1
<Review ID>UR2
"""
HOTEL_IN_OLD_FORM = """<Hotel Name>Old Inn
<URL>http://x/Hotel_Review-g1-Reviews-Old_Inn-Playa_del_Carmen.html

<Author>ann
<Content>It was old.
<Overall>2.0

<Author>ann
<Content>It was old.
<Overall>2.0
"""
TRANSCRIPT = {
    "transcript": {
        "sections": [
            {
                "turns": [
                    {
                        "speaker": {"identifier": "j_doe", "roles": {"0": {"type": "scotus_justice"}}},
                        "text_blocks": [{"text": "Why "}, {"text": "so?"}],
                    },
                    {"speaker": {"identifier": "a_roe", "roles": None}, "text_blocks": [{"text": "Because."}]},
                    {"speaker": None, "text_blocks": [{"text": "[Laughter]"}]},
                ]
            }
        ]
    }
}
TWEETS = table(
    ["created_at", "username", "text", "lng", "lat"],
    ["1", "ann", "Look at this https://t.co/Ab1 here", "-71.5", "42.25"],
    ["2", "bob", "too short https://t.co/Ab2", "-71.5", "42.25"],
    ["3", "cy", "a place that is none at all", "east", "42.25"],
    ["4", "dee", "a field is missing in this line"],
)

# Files of the sources, and the rows that are read from them; None is an unreadable record.
EXPECTED_ROWS: dict[str, tuple[list[Files], list[dict[str, Any] | None]]] = {
    "dbpedia14": (
        [
            {
                "data/dbpedia/classes.txt": "Company\nArtist\n",
                "data/dbpedia/train.csv": '1,"She sings , and\nplays ."\n0,It sells .\n7,What ?\nno number,x\n0\n',
            }
        ],
        [
            {"text": "She sings , and\nplays .", "category": "Artist"},
            {"text": "It sells .", "category": "Company"},
            None,
            None,
            None,
        ],
    ),
    "imdb": (
        [
            {
                "aclImdb/train/urls_neg.txt": "http://www.imdb.com/title/tt0064354/usercomments\n",
                "aclImdb/train/urls_pos.txt": "http://x/title/tt1/y\nhttp://x/title/tt22/y\n",
                "aclImdb/train/neg/0_1.txt": "Bad.<br /><br />Very bad.",
                "aclImdb/train/pos/1_10.txt": " ".join(f"w{n}" for n in range(300)),
                "aclImdb/train/pos/readme.txt": "not a review",
            }
        ],
        [
            {"text": "Bad. Very bad.", "rating": "1", "movie": "tt0064354"},
            {"text": " ".join(f"w{n}" for n in range(200)), "rating": "10", "movie": "tt22"},
        ],
    ),
    "hotels13": (
        [
            {
                "LARA/Data/Reviews-bk/1.dat": HOTEL,
                "LARA/Data/Reviews-bk/2.dat": HOTEL_IN_OLD_FORM,
                "LARA/Data/Reviews-bk/x": "",
            }
        ],
        [
            {"text": "We loved it.", "hotel": "Sea View", "city": "Makena", "rating": "5"},
            None,
            {"text": "It was old.", "hotel": "Old Inn", "city": "Playa del Carmen", "rating": "2"},
        ],
    ),
    "scotus": (
        [
            {
                "oyez/cases/1997.96-1579-t01.json": json.dumps(TRANSCRIPT),
                "oyez/cases/1998.97-1-t02.json": '{"transcript": null}',
                "oyez/cases/1955.1-t01.json": json.dumps(TRANSCRIPT),
                "oyez/cases/1997.96-1579.json": "{}",
            }
        ],
        [
            {"text": "Why so?", "speaker": "j_doe", "role": "justice", "case": "1997.96-1579", "term": "1997"},
            {"text": "Because.", "speaker": "a_roe", "role": "advocate", "case": "1997.96-1579", "term": "1997"},
            {
                "text": "[Laughter]",
                "speaker": "unknown",
                "role": "unidentified",
                "case": "1997.96-1579",
                "term": "1997",
            },
        ],
    ),
    "reddit_titles": (
        [
            {
                "data/nba.csv": table(
                    ["id", "score", "over_18", "title"],
                    ["a", "5", "False", "Dunk &amp; run"],
                    ["b", "9", "False", "Best of all"],
                    ["c", "99", "True", "For adults"],
                    ["d", "4", "False", "Best  of all"],
                    ["e", "3"],
                ),
                "data/empty.csv": "id,score,over_18,title\n",
            }
        ],
        [
            None,
            {"text": "Best of all", "subreddit": "nba"},
            {"text": "Dunk & run", "subreddit": "nba"},
        ],
    ),
    "geotweets": (
        [{"a.csv": TWEETS, "other.CSV": "x,y\n1,2\n"}, {"b/tweets.csv": TWEETS.encode("latin-1")}],
        [{"text": "Look at this here", "lat": 42.25, "lon": -71.5}, None, None, None, None],
    ),
}
SENTENCES = {f"server/data/{language}/{name}": "" for language, names in commonvoice9.FILES.items() for name in names}
SENTENCES["server/data/eu/wiki.eu.txt"] = "Kaixo mundua.\r\n\nBai\nKaixo  mundua.\n"
SENTENCES["server/data/eu/argia01.txt"] = "\ufeffEgun on.\n"
SENTENCES["server/data/eu/cities.txt"] = "Not a sentence.\n"
EXPECTED_ROWS["commonvoice9"] = (
    [SENTENCES],
    [{"text": "Egun on.", "language": "eu"}, {"text": "Kaixo mundua.", "language": "eu"}],
)
NEWS: list[Files] = [
    {"data/ag_news_csv/test.csv": table(["3", "Shop opens", "A shop."])},
    {"data/archive.zip": zip_file("train.csv", table(["Class", "T", "D"], ["1", "War ends", "Peace. At last"]))},
    {"data/formal/validation.csv": table(["Class", "T", "D"], ["9", "x", "y"])},
    {"dataset/samples10000valMed.csv": table(["", "l", "t"], ["0", "1", "Cup won . By us"], ["1", "1", "a . b . c"])},
    {
        "Annotated_Label/ag-news-sample4000-label1.json": json.dumps(
            [{"content": "英文标题：Chip  made\n英文标题描述：It is #39;fast #39;.\n样本索引：3"}]
        )
    },
    {
        "data/ag_news_train.csv": table(
            ["text", "label"], ["Chip made It is#39;fast#39;.", "3.0"], ["War ends Peace At last", "0"]
        )
    },
    {
        "data/ag_news/train.csv": table(["Two minds", "0"]),
        **{f"data/ag_news/{part}.csv": "" for part in ("dev", "test")},
    },
    {"data/agnews/train.csv": table(["Two minds.", "sports"], ["Odd", "weather"], ["Shop opens: a shop", "business"])},
]
EXPECTED_ROWS["agnews"] = (
    NEWS,
    [
        None,
        None,
        {"text": "War ends Peace. At last", "section": "World"},
        {"text": "Cup won By us", "section": "Sports"},
        {"text": "a b . c", "section": "Sports"},
        {"text": "Chip  made It is #39;fast #39;.", "section": "Sci/Tech"},
    ],
)


@pytest.fixture
def sources(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Repository]]:
    """The repositories of a set of `EXPECTED_ROWS`."""
    folders = [commit_files(tmp_path / f"{n}", files) for n, files in enumerate(EXPECTED_ROWS[request.param][0])]
    repositories = [Repository(folder.name, folder, "HEAD") for folder in folders]
    yield repositories
    for source in repositories:
        source.__exit__(None, None, None)


@pytest.mark.parametrize(("sources", "name"), [(name, name) for name in EXPECTED_ROWS], indirect=["sources"])
def test_rows_are_read_from_the_files_of_each_source(sources: list[Repository], name: str) -> None:
    assert list(SETS[name].rows(sources)) == EXPECTED_ROWS[name][1]
    assert set(SETS[name].contexts) == set().union(*filter(None, EXPECTED_ROWS[name][1])) - {"text"}


def test_news_are_split_into_words() -> None:
    """Tags and entities are resolved; punctuation stays inside words and before prices."""
    examples = {
        "Boeing Co. #39;s Saturn (AP) won't  - \\$225 &lt;b&gt;Go&lt;/b&gt;": "boeing co.'s saturn ap won't $225 go",
        "AT amp;T: up 5%! ": "at t up 5%",
        "...": "",
    }
    for text, expected in examples.items():
        assert agnews.article_words({"text": text, "section": "World"}) == {"text": expected, "section": "World"}


def test_reviews_of_chains_and_of_wrong_scales_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are other languages and missing ratings; half stars are rounded up."""
    review_text = "The room was clean and the staff was very nice"

    def record(hotel: str, rating: Any, text: Any = review_text) -> dict[str, Any]:
        names = {"name": hotel, "city": "Macon", "province": "GA"}
        return {**names, "reviews.rating": rating, "reviews.text": text}

    chain = [record(f"chain {n}", 5.0, "This is a hotel of our chain in the city") for n in range(3)]
    records = [
        record("a", 3.5, f"{review_text}... More"),
        record("a", 0.0),
        record("a", float("nan")),
        record("a", 4.0, float("nan")),
        record("b", 8.0),
        record("b", 3.0),
        record("c", 4.4, "La chambre etait tres petite mais jolie"),
        *chain,
    ]
    monkeypatch.setattr(hotels, "read_frame", lambda source: records)
    rows = list(hotels.rows([None]))  # type: ignore[list-item]
    assert [row for row in rows if row] == [{"text": review_text, "hotel": "a", "city": "Macon, GA", "rating": "4"}]
    assert rows.count(None) == 2


def test_hotels_require_pyreadr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyreadr", None)
    with pytest.raises(UserError, match="pip install pyreadr"):
        hotels.read_frame(Repository("x", commit_files(tmp_path / "x", {hotels.PATH: "x"}), "HEAD"))


def test_commits_are_sorted_by_author_and_time(tmp_path: Path) -> None:
    """Authors are pseudonyms; merges, bots and releases are left out."""
    folder = tmp_path / "home"

    def commit(subject: str, name: str, day: int) -> None:
        date = f"2020-01-{day:02d}T00:00:00+0000"
        commit_files(folder, {}, subject, GIT_AUTHOR_NAME=name, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)

    commit("Begin", "Ann Bee", 3)
    commit("Mend it", "cy", 4)
    commit("Bump version to v1.2.3", "cy", 5)
    commit("Git 2.41.0-rc1", "cy", 5)
    commit("Update all", "dependabot[bot]", 6)
    commit("Fix " + "x" * 200, " ann bee ", 1)
    git(folder, "checkout", "--quiet", "-b", "side", "HEAD~1")
    git(folder, "merge", "--quiet", "--no-ff", "--message=Merge it", "-", "--allow-unrelated-histories")
    with Repository("a/b", folder, "HEAD") as source:
        rows = [row for row in SETS["commits"].rows([source]) if row]
    users = list(dict.fromkeys(str(row["user"]) for row in rows))
    assert len(users) == 2
    assert all(user.startswith("a/b:") and "ann" not in user for user in users)
    streams = {user: [(row["text"], row["time"]) for row in rows if row["user"] == user] for user in users}
    assert sorted(streams.values()) == [
        [("Fix " + "x" * 96, "2020-01-01T00:00:00Z"), ("Begin", "2020-01-03T00:00:00Z")],
        [("Mend it", "2020-01-04T00:00:00Z")],
    ]


def test_texts_are_cleaned() -> None:
    assert reading.clean(" A\u0301 b\t\r\nc\u2028d\x00e\x85 f\u00a0 ") == "Á b c de f"


def test_tables_may_have_long_fields() -> None:
    long = "x" * (1 << 18)
    assert list(reading.table(f"a,{long}\nb,c\n")) == [["a", long], ["b", "c"]]


def test_unreadable_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.csv.*title.*id, score"):
        list(reading.records("id,score\n1,2\n", "x.csv", ["id", "title"]))
    folder = commit_files(tmp_path / "x", {"a.zip": "no archive", "b.zip": zip_file("x.txt", "")})
    with Repository("x", folder, "HEAD") as source:
        with pytest.raises(UserError, match=r"a\.zip"):
            reading.read_from_zip(source, "a.zip", ".csv")
        with pytest.raises(UserError, match=r"b\.zip.*0"):
            reading.read_from_zip(source, "b.zip", ".csv")
        with pytest.raises(UserError, match=r"data/\*\.csv"):
            source.paths("data/", ".csv")


def test_the_last_collection_of_a_language_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It contributes the sentences with the lowest hashes."""
    sentences = [f"Esaldi {n}" for n in range(9)]
    files = {**SENTENCES, "server/data/eu/wiki.eu.txt": "\n".join(sentences)}
    monkeypatch.setattr(commonvoice9, "MAX_SENTENCES", 4)
    with Repository("x", commit_files(tmp_path / "x", files), "HEAD") as source:
        texts = [row["text"] for row in commonvoice9.rows([source]) if row]
    assert texts == ["Egun on.", *sorted(sentences, key=corpora.text_hash)[:3]]
