"""Makes tiny models and users in the formats of the factorcell that runs it, with what they answer today.

    python tests/formats/make.py tests/formats/N

Run once for a format. It stands on the command line and on names of `factorcell` itself, which older versions have too.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from factorcell import Blend, Completer, Popularity, Run, User, learn_one, open_scorer

Row = dict[str, Any]

CITIES, TIMES = ("Oslo", "Nice"), ("2026-01-05T08:00:00", "2026-07-11T20:30:00")
SAID = {"Oslo": ("the sea is cold", "cold sand and snow", "snow"), "Nice": ("the sun is warm", "warm sand", "sun")}
MIXED = {"Oslo": ("the snow is warm", "cold sun"), "Nice": ("the sun is warm", "cold sea and sand")}
QUERIES = {
    "ann": ("bake bread", "bake a cake"),
    "bob": ("ball game", "bat and ball"),
    "cat": ("ball game", "bat"),
    "dan": ("bake", "ball"),
}
LEARNED = ("ball", "ball game", "bat", "ball game")

FEW = "--min-count 1 --min-context-count 2 --min-user-count 2 --min-text-count 2 --min-context-word 1".split()
SIZES = "--embedding-size 6 --hidden-size 8 --variable-size 3 --context-size 4 --number-size 3 --rank 2".split()
SHORT = "--epochs 60 --learning-rate 0.02 --evaluations 1 --threads 1 --device cpu".split()
KINDS = ("city", "price:number", "at:hour", "east:longitude", "turn:cyclic=6", "about:text", "place:vector")
WHOLE = "--cell gru --layers 2 --layer-norm --adapt concat --adapt factor --adapt scale --adapt prefix".split()
BIASES = "--output-bias low_rank_each --output-bias one_hot --output-bias sparse --output-bias hash".split()
HASHES = "--hash-size 50 --bloom-size 500 --sparse-penalty 0.001".split()
ADAPTIVE = "--softmax adaptive --cutoffs 6 --cell lstm --adapt scale_split --output-bias low_rank".split()

MODELS = ("words", "kinds", "clusters", "letters", "ngram", "separate", "mixture")
NEEDLESS = ("README.md", "log.jsonl", "checkpoint.safetensors")  # to open a run


def texts() -> list[Row]:
    """Texts with contexts of every kind."""
    return [
        {
            "text": text,
            "city": city,
            "price": 10.0 * number + len(text),
            "at": TIMES[number % 2],
            "east": 10.7 - 3 * number,
            "turn": number,
            "about": SAID[city][number - 1],
            "place": [number / 2, float(city == "Oslo")],
        }
        for city in CITIES
        for number, text in enumerate(SAID[city])
    ]


def queries(*people: str) -> list[Row]:
    """What people have asked for, in order."""
    return [
        {"text": text, "who": who, "time": time}
        for who in people
        for time, text in enumerate(QUERIES[who] * (2 if who == "dan" else 4))
    ]


def make(folder: Path) -> None:
    """All models, users of the letters, and what they answer."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as tables:
        mixed = texts() + [{"text": text, "city": city} for city, said in MIXED.items() for text in said]
        for name, rows in (
            ("texts", texts() * 4),
            ("queries", queries("ann", "bob", "dan")),
            ("others", queries("cat")),
            ("mixed", mixed),
        ):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            Path(tables, f"{name}.jsonl").write_text(lines, encoding="utf-8")
        train(folder, Path(tables))
    for name in NEEDLESS:
        for file in folder.rglob(name):
            file.unlink()
    run = Run.open(folder / "letters")
    user = User.new(run)
    (folder / "new.user").write_bytes(user.to_bytes())
    for text in LEARNED:
        user = learn_one(run, user, text)
    (folder / "learned.user").write_bytes(user.to_bytes())
    expected = json.dumps(answers(folder), indent=1)
    (folder / "expected.json").write_text(expected + "\n", encoding="utf-8")


def train(folder: Path, tables: Path) -> None:
    """Every kind of model, from the command line."""
    said, asked, others, mixed = (str(tables / f"{name}.jsonl") for name in ("texts", "queries", "others", "mixed"))
    how, at = (*FEW, *SIZES, *SHORT), {name: str(folder / name) for name in MODELS}
    contexts = [word for name in KINDS for word in ("--context", name)]
    command("train", said, "--dev", said, "--out", at["words"], "--context", "city", *how)
    command("train", said, "--dev", said, "--out", at["kinds"], *contexts, *WHOLE, *BIASES, *HASHES, *how)
    command("train", said, "--dev", said, "--out", at["clusters"], "--context", "city", *ADAPTIVE, *how)
    letters = "--user who --unit char --max-tokens 20 --min-user-count 8 --batch-tokens 60".split()
    command("train", asked, "--dev", asked, "--out", at["letters"], *how, *letters)
    command("tune-online", at["letters"], others, "--optimiser", "adadelta", "--threads", "1")
    command("baseline", "ngram", said, "--out", at["ngram"], "--like", at["words"], "--order", "3")
    command("separate", said, "--dev", said, "--out", at["separate"], "--by", "city", *how)
    parts = (at[name] for name in ("words", "ngram", "separate"))
    command("mix", *parts, "--dev", mixed, "--out", at["mixture"], "--by", "city", "--threads", "1")


def command(*words: str) -> None:
    """`factorcell` with these words, with a cache of its own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        subprocess.run([sys.executable, "-m", "factorcell", *words], check=True, env=environment)


def answers(folder: Path) -> Row:
    """What the models and users in a folder answer: nats of every target, suggestions, a person's vector."""
    nats = {}
    for name in MODELS:
        model = open_scorer(folder / name)
        corpus = model.prepare(queries("ann", "bob")[::5] if name == "letters" else texts())
        nats[name] = [round(float(value), 6) for value in model.nats(corpus)]
    run = Run.open(folder / "letters")
    completer, popularity = Completer(run), Popularity.of(run)
    users: Row = {}
    for path in sorted(folder.glob("*.user")):
        user = User.from_bytes(path.read_bytes())
        after = learn_one(run, user, "bake bread")
        users[path.stem] = {
            "seen": user.seen,
            "texts": list(user.history.texts),
            "vector": [round(float(value), 6) for value in user.vector],
            "after": [round(float(value), 6) for value in after.vector],
            "completions": [one.text for one in completer.complete("ba", user, k=3)],
            "blend": [one.text for one in Blend(completer, popularity).complete("ba", user, k=3)],
        }
    return {"nats": nats, "users": users}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
