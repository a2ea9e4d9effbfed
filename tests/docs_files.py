"""The files that commands in the documentation use: small tables, small runs and n-best lists."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from factorcell.config import Config

ROWS = 300  # enough that none of the five ratings is rare
HOTELS = ["Hotel Deca - A Noble House Hotel", *(f"Hotel {number}" for number in range(9))]
BASE = "./models/SmolLM2-135M"  # the pretrained model of the pages
COMMUNITIES = {"nba": "sport", "nfl": "sport", "Python": "code", "PHP": "code", "germany": "land", "norge": "land"}
TEXT_PAIRS = {
    1: ("the room was dirty !", "i will never stay here again ."),
    2: ("the room was ok .", "i will not stay here again ."),
    3: ("our room was clean .", "how to bake bread"),
    4: ("our room was clean and comfortable .", "how to bake a cake"),
    5: ("the room was clean and comfortable !", "i will stay here again ."),
}
RECIPE = """
[data]
text = "review"
context = ["stars", "city"]
min_context_count = 10
"""

# Options that are added to commands, so that they are fast.
SIZES = "--hidden-size 8 --embedding-size 8 --variable-size 4 --context-size 4"
SMALL = f"--epochs 0.5 --evaluations 1 --min-context-count 2 --min-user-count 2 {SIZES}"
ADDED_OPTIONS = {
    "train": f"{SMALL} --max-tokens 40",
    "compare": SMALL,
    "tune": "--epochs 0.5 --evaluations 1 --trials 1",
    "finetune": "--epochs 0.5 --evaluations 1",
    "generate": "--number 1",
    "complete": "--seconds 0.1",
    "tune-online": "--rows-per-user 2 --optimizer sgd --seconds 0.02",
    "replay": "--rows-per-user 2 --seconds 0.02",
}
# Options that are added to configs in Python code, by section.
SMALL_CONFIG: dict[str, dict[str, Any]] = {
    "data": {"min_context_count": 2},
    "model": {"embedding_size": 8, "variable_size": 4, "context_size": 4},
    "training": {"epochs": 0.5, "evaluations": 1},
    "backbone": {"hidden_size": 8},
}
WITHOUT_THREADS = {"report"}  # commands without --threads

Main = Callable[[Sequence[str]], int]
from_dict = Config.from_dict  # the original, which a test replaces by `small_config`


def with_small_sizes(words: Sequence[str]) -> list[str]:
    """Return the command `words` with options that make it fast."""
    threads = [] if words[0] in WITHOUT_THREADS or words[0] == "baseline" else ["--threads", "1"]
    added = shlex.split(ADDED_OPTIONS.get(words[0], ""))
    if words[0] == "generate" and "--stream" in words:
        added = []
    return [*words, *added, *threads]


def small_config(values: Mapping[str, Any], where: str = "config") -> Config:
    """Replace `Config.from_dict`: use small sizes unless `values` set them."""
    small = {name: options for name, options in SMALL_CONFIG.items() if "kind" not in values.get(name, {})}
    return from_dict({name: small.get(name, {}) | dict(values.get(name, {})) for name in small | dict(values)}, where)


def row(number: int) -> dict[str, Any]:
    """Return one row of every table, with all columns that the pages use."""
    stars = number % 5 + 1
    text = TEXT_PAIRS[stars][number // 5 % 2]
    return {
        "text": text,
        "review": text,
        "query": text,
        "stars": stars,
        "rating": stars,
        "city": ("Oslo", "Nice")[number % 2],
        "country": ("NL", "DE", "GB")[number % 3],
        "language": ("Basque", "French")[number % 2],
        "nights": 1 + number % 30,
        "lat": 50 + number % 10 + 0.25,
        "lon": 4 + number % 7 + 0.25,
        "age": 20 + number % 50 + 0.5,
        "time": f"2026-11-{number % 28 + 1:02}T{number % 24:02}:15",
        "title": f"a room in {('Oslo', 'Nice')[number % 2]}",
        "topics": json.dumps([number % 3 / 3, number % 5 / 5]),
        "user": f"user {number % 6}",
        "speaker": f"speaker {number % 6}",
        "role": ("judge", "advocate")[number % 2],
        "case": f"case {number % 4}",
        "hotel": HOTELS[number % 10],
        "community": list(COMMUNITIES)[number % 6],
    }


def write_tables(folder: Path) -> None:
    """Write the same rows under all names that the pages use; reviews.csv has no column `text`, only `review`."""
    rows = [row(number) for number in range(ROWS)]
    table, part = pa.Table.from_pylist(rows), pa.Table.from_pylist(rows[:60])
    csv.write_csv(table.drop_columns(["text"]), folder / "reviews.csv")
    csv.write_csv(table, folder / "queries.csv")
    for name in ("dev", "test", "new", "boston", "boston-dev", "places"):
        csv.write_csv(part, folder / f"{name}.csv")
    (folder / "reviews").mkdir()
    for number in range(3):
        parquet.write_table(table.slice(100 * number, 100), folder / "reviews" / f"part-{number}.parquet")
    for name in ("queries", "train"):
        parquet.write_table(table, folder / f"{name}.parquet")
    for name in ("dev", "test"):
        parquet.write_table(part, folder / f"{name}.parquet")
    cities = [{"name": "Bergen", "lat": 52.0, "lon": 5.0}, {"name": "Lyon", "lat": 58.0, "lon": 9.0}]
    csv.write_csv(pa.Table.from_pylist(cities), folder / "cities.csv")
    themes = [{"community": name, "theme": theme} for name, theme in COMMUNITIES.items()]
    csv.write_csv(pa.Table.from_pylist(themes), folder / "themes.csv")
    chains = [{"hotel": name, "chain": ("Inn", "Lodge")[number % 2]} for number, name in enumerate(HOTELS)]
    csv.write_csv(pa.Table.from_pylist(chains), folder / "hotels.csv")
    (folder / "review.txt").write_text("the room was dirty !\ni will stay here again .\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")


def write_base(folder: Path) -> None:
    """Write a small Transformer with random weights, and its tokenizer, under the name of the pretrained model."""
    import tokenizers
    import torch
    import transformers

    library_tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    library_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library_tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    library_tokenizer.train_from_iterator([text for pair in TEXT_PAIRS.values() for text in pair], trainer)
    unknown, start, end = specials
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library_tokenizer, unk_token=unknown, bos_token=start, eos_token=end
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=library_tokenizer.get_vocab_size(),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def write_lists(folder: Path) -> None:
    """Write n-best lists as JSON lines and in the format of Kaldi."""
    lines, texts, costs, references, speakers = [], [], [], [], ["utterance\tspeaker"]
    for number in range(8):
        spoken, recognized = TEXT_PAIRS[number % 5 + 1]
        name = f"a{number}"
        scored = [
            {"text": recognized, "acoustic": -30.0 - number, "lm": -9.0},
            {"text": spoken, "acoustic": -31.5, "lm": -9.5},
        ]
        about = {"speaker": f"speaker {number % 6}", "role": "judge", "case": f"case {number % 4}"}
        lines.append(json.dumps({"id": name, "hypotheses": scored, "reference": spoken, **about}))
        texts += [f"{name}-1 {recognized}", f"{name}-2 {spoken}"]
        costs += [f"{name}-1 30.{number}", f"{name}-2 31.5"]
        references.append(f"{name} {spoken}")
        speakers.append(f"{name}\tspeaker {number % 6}")
    for name in ("dev", "test", "new"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kaldi = folder / "nbest"
    kaldi.mkdir()
    files = {kaldi / "words_text": texts, kaldi / "ac_cost": costs, kaldi / "lm_cost": costs}
    files |= {folder / "text": references, folder / "spk.tsv": speakers}
    for path, content in files.items():
        path.write_text("\n".join(content) + "\n", encoding="utf-8")


def write_runs(folder: Path, main: Main) -> None:
    """Train the runs that pages use without training them; `folder` is the working directory."""
    runs = {
        "reviews": "reviews.csv --text review --context stars --context city --context nights:number",
        "factorcell": "reviews.csv --text review --context stars --context city",
        "unadapted": "reviews.csv --text review --model unadapted",
        "characters": "reviews.csv --text review --tokenizer char --context stars",
        "pieces": "reviews.csv --text review --tokenizer bpe --context stars",
        "hotels": "train.parquet --context hotel --context rating",
        "places": "places.csv --tokenizer char --context country --context lat:number --context lon:number",
        "reddit": "train.parquet --context community",
        "scotus": "train.parquet --user speaker --context role --context case",
        "qac": "queries.parquet --text query --tokenizer char --user user",
    }
    for name, arguments in runs.items():
        assert main(with_small_sizes(["train", *shlex.split(arguments), "--out", f"runs/{name}"])) == 0, name
