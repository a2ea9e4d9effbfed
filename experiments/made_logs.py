"""Logs of made-up users, for measurements of completion: texts of real tables, or made queries, in order of time.

A user has a habit: with the probability `repeats` the next text is an earlier one of the user, otherwise with the
probability `stays` it is of one of the user's own groups (a country, a community or a topic), and otherwise of any.
Within a group, the r-th text is drawn with a probability proportional to (r + 1) ** -`skew`, so some texts are popular.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import corpora
from commits import first_per_user

USERS = {"train": 600, "dev": 60, "test": 220}
MIN_TEXTS, MEAN_FURTHER_TEXTS, MAX_TEXTS = 8, 22, 80  # of a user: the minimum, and a geometric number more
GROUPS_PER_USER = 2
MAX_LENGTH = 60  # characters of a title; longer ones are left out
COMMUNITIES, TITLES_PER_COMMUNITY, PLACES_PER_COUNTRY = 150, 60, 400
MIN_COMMITS, MAX_COMMITS = 3600, 30  # texts of the authors of dev, and of those of test; texts of one of these authors
START = datetime(2026, 1, 5, 8)

Groups = Sequence[Sequence[str]]  # the texts of each group, the most popular first
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Habit:
    """How a user chooses texts: the probabilities of a repeated text, and of a text of the user's own groups."""

    repeats: float
    stays: float


STRONG, WEAK = Habit(repeats=0.35, stays=0.8), Habit(repeats=0.08, stays=0.3)


def make_log(groups: Groups, habits: Sequence[Habit], skew: float, seed: int) -> dict[str, pa.Table]:
    """Return the tables train, dev and test of different users; the habits of users alternate."""
    generator = np.random.default_rng(seed)
    sizes = np.array([len(texts) for texts in groups], dtype=np.float64)
    tables = {}
    for part, count in USERS.items():
        rows = []
        for number in range(count):
            user = f"{part}-{number:03}"
            rows += _rows_of_user(user, groups, sizes / sizes.sum(), habits[number % len(habits)], skew, generator)
        tables[part] = pa.Table.from_pylist(rows)
    return tables


def _rows_of_user(
    user: str, groups: Groups, weights: Weights, habit: Habit, skew: float, generator: np.random.Generator
) -> list[dict[str, str]]:
    """Return the texts of a user, some hours apart."""
    count = min(MAX_TEXTS, MIN_TEXTS + int(generator.geometric(1 / MEAN_FURTHER_TEXTS)))
    own_groups = generator.choice(len(groups), GROUPS_PER_USER, replace=False, p=weights)
    time, texts = START + timedelta(minutes=int(generator.integers(10_000))), list[str]()
    rows = []
    for _ in range(count):
        if texts and generator.random() < habit.repeats:
            text = texts[int(generator.integers(len(texts)))]
        else:
            is_own = generator.random() < habit.stays
            group = groups[int(generator.choice(own_groups) if is_own else generator.choice(len(groups), p=weights))]
            ranks = (np.arange(len(group)) + 1.0) ** -skew
            text = group[int(generator.choice(len(group), p=ranks / ranks.sum()))]
        texts.append(text)
        time += timedelta(minutes=int(generator.integers(1, 600)))
        rows.append({"text": text, "user": user, "time": time.isoformat()})
    return rows


def places(data: Path) -> dict[str, pa.Table]:
    """Place names, in lower case; the groups are countries, with their largest places first."""
    table = corpora.read(data / "placenames" / "train.parquet").sort_by([("population", "descending")])
    groups = _groups(table, "country", lambda name: True, PLACES_PER_COUNTRY)
    return make_log(groups, [STRONG, WEAK], skew=0.9, seed=1)


def titles(data: Path) -> dict[str, pa.Table]:
    """Titles of posts, in lower case; the groups are communities."""
    table = corpora.read(data / "reddit_titles" / "train.parquet")
    groups = _groups(table, "subreddit", lambda title: 8 <= len(title) <= MAX_LENGTH, TITLES_PER_COMMUNITY)
    return make_log(sorted(groups)[:COMMUNITIES], [STRONG, WEAK], skew=0.7, seed=2)


def _groups(table: pa.Table, column: str, is_used: Callable[[str], bool], size: int) -> list[list[str]]:
    """Return the first `size` different texts of each value of a column, in lower case; small groups are left out."""
    groups = dict[str, dict[str, None]]()
    for text, value in zip(table["text"].to_pylist(), table[column].to_pylist(), strict=True):
        group = groups.setdefault(value, {})
        if is_used(text) and len(group) < size:
            group[text.lower()] = None
    return [list(group) for group in groups.values() if len(group) >= size // 4]


# Parts of made queries: topic -> templates, and what fills their only blank.
TOPICS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "cooking": (
        ("{} recipe", "how to cook {}", "easy {} recipe", "how long to boil {}", "{} calories", "can dogs eat {}"),
        "rice,pasta,chicken breast,salmon,lentils,eggs,potatoes,pumpkin soup,banana bread,pancakes,risotto,curry,"
        "lasagne,chili,meatballs,apple pie,tofu,broccoli,sweet potatoes,pizza dough,hummus,quinoa,beef stew".split(","),
    ),
    "repairs": (
        ("how to fix a {}", "{} repair near me", "{} making noise", "replace {} yourself", "{} spare parts", "used {}"),
        "dishwasher,washing machine,leaking tap,bike chain,fridge,toaster,garage door,lawn mower,boiler,radiator,"
        "window lock,laptop hinge,phone screen,vacuum cleaner,coffee machine,sewing machine,drill,door handle".split(
            ","
        ),
    ),
    "health": (
        ("{} symptoms", "how to treat {}", "{} in children", "what causes {}", "{} home remedies", "is {} contagious"),
        "back pain,headache,fever,hay fever,sore throat,insomnia,knee pain,a cold,food poisoning,migraine,asthma,"
        "sunburn,dry skin,toothache,high blood pressure,heartburn,a rash,earache,anemia,stress".split(","),
    ),
    "money": (
        ("{} calculator", "best {} rates", "how does a {} work", "{} comparison", "cancel {}", "{} for students"),
        "mortgage,savings account,credit card,car insurance,pension,student loan,travel insurance,tax return,budget,"
        "bank account,health insurance,index fund,car loan,phone contract,gym membership,electricity plan".split(","),
    ),
    "sports": (
        ("{} results", "{} live stream", "{} rules", "{} training plan", "{} shoes", "{} world cup", "{} schedule"),
        "football,tennis,basketball,marathon,cycling,rugby,cricket,volleyball,swimming,handball,golf,ice hockey,"
        "table tennis,badminton,rowing,formula one,skiing,triathlon,darts,chess".split(","),
    ),
    "computers": (
        ("install {}", "{} tutorial", "{} not working", "{} vs excel", "download {}", "{} update", "{} certification"),
        "python,linux,firefox,photoshop,git,docker,word,powerpoint,blender,wordpress,java,postgresql,zoom,steam,"
        "visual studio code,libreoffice,virtualbox,kubernetes,printer driver,outlook".split(","),
    ),
    "home": (
        ("{} ideas", "cheap {}", "{} measurements", "how to clean a {}", "{} delivery", "second hand {}", "{} diy"),
        "sofa,kitchen,bathroom,carpet,mattress,desk,bookshelf,wardrobe,garden shed,balcony,oven,curtains,dining table,"
        "bedroom,office chair,fireplace,mirror,lamp,greenhouse,terrace".split(","),
    ),
    "names": (
        ("{} net worth", "how old is {}", "{} songs", "{} movies", "{} interview", "{} wife", "{} tour dates"),
        "ada moreau,tom halvorsen,lena fischer,marco bellini,ruth okafor,sven dahl,nina petrov,omar haddad,"
        "grace whitfield,hugo lambert,iris tanaka,paul costa,clara nowak,dennis riley,maya sandoval".split(","),
    ),
}
TOWN_TEMPLATES = ("weather in {}", "{} hotels", "flights to {}", "things to do in {}", "{} map", "train to {}")
TOWNS = 120  # the largest places with a short name
WEBSITES = (
    "videos,mail,maps,news,translate,bank login,weather,calendar,jobs,dictionary,tv guide,train times,lottery numbers,"
    "cinema,library,houses for rent,used cars,horoscope,radio,crossword,exchange rates,white pages,games,chat,photos"
).split(",")


def queries(data: Path) -> dict[str, pa.Table]:
    """Made queries with strong popularity; the groups are topics, and the names of web sites belong to all of them."""
    table = corpora.read(data / "placenames" / "train.parquet").sort_by([("population", "descending")])
    towns = list(dict.fromkeys(name.lower() for name in table["text"].to_pylist() if len(name) <= 12))[:TOWNS]
    generator, groups = np.random.default_rng(3), list[list[str]]()
    for templates, words in (*TOPICS.values(), (TOWN_TEMPLATES, towns)):
        group = [template.format(word) for template in templates for word in words]
        generator.shuffle(group)
        start = 3 * len(groups) % len(WEBSITES)
        sites = [*WEBSITES[start:], *WEBSITES[:start]]
        groups.append([text for pair in zip(sites, group, strict=False) for text in pair] + group[len(sites) :])
    return make_log(groups, [STRONG, WEAK], skew=1.1, seed=4)


def commits(data: Path) -> dict[str, pa.Table]:
    """Commit subjects of real authors, split by author; dev and test have the first texts of each of their authors."""
    every = corpora.read(data / "commits" / "train.parquet")
    parts = corpora.split(every, "user", MIN_COMMITS, range(MIN_TEXTS, MAX_TEXTS))
    others = corpora.read(data / "commits" / "dev.parquet").select(every.column_names)
    parts["test"] = pa.concat_tables([parts["test"], others])
    return {name: table if name == "train" else first_per_user(table, MAX_COMMITS) for name, table in parts.items()}


LOGS = {"commits": commits, "places": places, "titles": titles, "queries": queries}
