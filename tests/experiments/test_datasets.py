"""Tables out of public repositories: small ones in the form of each source, and what is done about wrong ones."""

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
from factorcell.config import UserError
from tests.experiments.repositories import Files, git, made, packed, table

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
OLD_HOTEL = """<Hotel Name>Old Inn
<URL>http://x/Hotel_Review-g1-Reviews-Old_Inn-Playa_del_Carmen.html

<Author>ann
<Content>It was old.
<Overall>2.0

<Author>ann
<Content>It was old.
<Overall>2.0
"""
SITTING = {
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

# What the sources hold, and the rows that are made of it; None is a record that cannot be read.
GOLDEN: dict[str, tuple[list[Files], list[dict[str, Any] | None]]] = {
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
        [{"LARA/Data/Reviews-bk/1.dat": HOTEL, "LARA/Data/Reviews-bk/2.dat": OLD_HOTEL, "LARA/Data/Reviews-bk/x": ""}],
        [
            {"text": "We loved it.", "hotel": "Sea View", "city": "Makena", "rating": "5"},
            None,
            {"text": "It was old.", "hotel": "Old Inn", "city": "Playa del Carmen", "rating": "2"},
        ],
    ),
    "scotus": (
        [
            {
                "oyez/cases/1997.96-1579-t01.json": json.dumps(SITTING),
                "oyez/cases/1998.97-1-t02.json": '{"transcript": null}',
                "oyez/cases/1955.1-t01.json": json.dumps(SITTING),
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
VOICES = {f"server/data/{language}/{name}": "" for language, names in commonvoice9.FILES.items() for name in names}
VOICES["server/data/eu/wiki.eu.txt"] = "Kaixo mundua.\r\n\nBai\nKaixo  mundua.\n"
VOICES["server/data/eu/argia01.txt"] = "\ufeffEgun on.\n"
VOICES["server/data/eu/cities.txt"] = "Not a sentence.\n"
GOLDEN["commonvoice9"] = (
    [VOICES],
    [{"text": "Egun on.", "language": "eu"}, {"text": "Kaixo mundua.", "language": "eu"}],
)
NEWS: list[Files] = [
    {"data/ag_news_csv/test.csv": table(["3", "Shop opens", "A shop."])},
    {"data/archive.zip": packed("train.csv", table(["Class", "T", "D"], ["1", "War ends", "Peace. At last"]))},
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
GOLDEN["agnews"] = (
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
    """The repositories of a set of `GOLDEN`."""
    found = [made(tmp_path / f"{n}", files) for n, files in enumerate(GOLDEN[request.param][0])]
    every = [Repository(folder.name, folder, "HEAD") for folder in found]
    yield every
    for source in every:
        source.__exit__(None, None, None)


@pytest.mark.parametrize(("sources", "name"), [(name, name) for name in GOLDEN], indirect=["sources"])
def test_rows_are_those_of_the_files(sources: list[Repository], name: str) -> None:
    assert list(SETS[name].rows(sources)) == GOLDEN[name][1]
    assert set(SETS[name].contexts) == set().union(*filter(None, GOLDEN[name][1])) - {"text"}


def test_news_as_words() -> None:
    """Tags and entities are resolved; what stands inside words and before prices stays."""
    told = {
        "Boeing Co. #39;s Saturn (AP) won't  - \\$225 &lt;b&gt;Go&lt;/b&gt;": "boeing co.'s saturn ap won't $225 go",
        "AT amp;T: up 5%! ": "at t up 5%",
        "...": "",
    }
    for text, expected in told.items():
        assert agnews.words({"text": text, "section": "World"}) == {"text": expected, "section": "World"}


def test_reviews_of_hotels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half stars up; no hotel rated out of ten, no text of a chain, none of another language, none without a rating."""
    fine = "The room was clean and the staff was very nice"

    def record(hotel: str, rating: Any, text: Any = fine) -> dict[str, Any]:
        named = {"name": hotel, "city": "Macon", "province": "GA"}
        return {**named, "reviews.rating": rating, "reviews.text": text}

    chain = [record(f"chain {n}", 5.0, "This is a hotel of our chain in the city") for n in range(3)]
    records = [
        record("a", 3.5, f"{fine}... More"),
        record("a", 0.0),
        record("a", float("nan")),
        record("a", 4.0, float("nan")),
        record("b", 8.0),
        record("b", 3.0),
        record("c", 4.4, "La chambre etait tres petite mais jolie"),
        *chain,
    ]
    monkeypatch.setattr(hotels, "frame", lambda source: records)
    found = list(hotels.rows([None]))  # type: ignore[list-item]
    assert [row for row in found if row] == [{"text": fine, "hotel": "a", "city": "Macon, GA", "rating": "4"}]
    assert found.count(None) == 2


def test_a_frame_of_r_wants_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyreadr", None)
    with pytest.raises(UserError, match="pip install pyreadr"):
        hotels.frame(Repository("x", made(tmp_path / "x", {hotels.PATH: "x"}), "HEAD"))


def test_commits_are_streams_of_authors(tmp_path: Path) -> None:
    """By author, then in order of time; a number in place of the name; no merge, robot or release."""
    home = tmp_path / "home"

    def commit(subject: str, name: str, day: int) -> None:
        date = f"2020-01-{day:02d}T00:00:00+0000"
        made(home, {}, subject, GIT_AUTHOR_NAME=name, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)

    commit("Begin", "Ann Bee", 3)
    commit("Mend it", "cy", 4)
    commit("Bump version to v1.2.3", "cy", 5)
    commit("Git 2.41.0-rc1", "cy", 5)
    commit("Update all", "dependabot[bot]", 6)
    commit("Fix " + "x" * 200, " ann bee ", 1)
    git(home, "checkout", "--quiet", "-b", "side", "HEAD~1")
    git(home, "merge", "--quiet", "--no-ff", "--message=Merge it", "-", "--allow-unrelated-histories")
    with Repository("a/b", home, "HEAD") as source:
        found = [row for row in SETS["commits"].rows([source]) if row]
    users = list(dict.fromkeys(str(row["user"]) for row in found))
    assert len(users) == 2
    assert all(user.startswith("a/b:") and "ann" not in user for user in users)
    streams = {user: [(row["text"], row["time"]) for row in found if row["user"] == user] for user in users}
    assert sorted(streams.values()) == [
        [("Fix " + "x" * 96, "2020-01-01T00:00:00Z"), ("Begin", "2020-01-03T00:00:00Z")],
        [("Mend it", "2020-01-04T00:00:00Z")],
    ]


def test_a_text_on_one_line() -> None:
    assert reading.clean(" A\u0301 b\t\r\nc\u2028d\x00e\x85 f\u00a0 ") == "Á b c de f"


def test_a_field_may_be_long() -> None:
    long = "x" * (1 << 18)
    assert list(reading.table(f"a,{long}\nb,c\n")) == [["a", long], ["b", "c"]]


def test_tables_name_their_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.csv: no column title; there are id, score"):
        list(reading.records("id,score\n1,2\n", "x.csv", ["id", "title"]))
    folder = made(tmp_path / "x", {"a.zip": "no archive", "b.zip": packed("x.txt", "")})
    with Repository("x", folder, "HEAD") as source:
        with pytest.raises(UserError, match=r"a\.zip cannot be unpacked"):
            reading.unpacked(source, "a.zip", ".csv")
        with pytest.raises(UserError, match=r"b\.zip has 0 files \*\.csv, not one"):
            reading.unpacked(source, "b.zip", ".csv")
        with pytest.raises(UserError, match=r"there is no file data/\*\.csv"):
            source.paths("data/", ".csv")


def test_the_last_collection_of_a_language_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are whole, and of the last one it is those of the smallest places."""
    many = [f"Esaldi {n}" for n in range(9)]
    files = {**VOICES, "server/data/eu/wiki.eu.txt": "\n".join(many)}
    monkeypatch.setattr(commonvoice9, "MOST", 4)
    with Repository("x", made(tmp_path / "x", files), "HEAD") as source:
        found = [row["text"] for row in commonvoice9.rows([source]) if row]
    assert found == ["Egun on.", *sorted(many, key=corpora.text_hash)[:3]]
