"""Compare generated texts with the texts of a table by ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), F1 in percent.

    factorcell generate RUN --rows TABLE --method beam --out generated.jsonl
    python benchmarks/headlines.py generated.jsonl TABLE --source description

Prints the means of the generated texts and, with --source, of the first words of the source, as many as the text has.
Words are lower-cased and without punctuation, and not stemmed.
"""

import argparse
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import regex


def rouge(candidate: str, reference: str) -> dict[str, float]:
    """Return the F1 of common words, of common pairs of words, and of the longest common subsequence."""
    first, second = (regex.findall(r"[\p{L}\p{N}]+", text.lower()) for text in (candidate, reference))
    lengths = [0] * (len(second) + 1)  # of the longest common subsequence with each beginning of the reference
    for word in first:
        diagonals = [length + (word == other) for length, other in zip(lengths, second, strict=False)]
        for index, diagonal in enumerate(diagonals, 1):
            lengths[index] = max(lengths[index], lengths[index - 1], diagonal)
    words, pairs = (Counter(first) & Counter(second)), (Counter(pairwise(first)) & Counter(pairwise(second)))
    total = len(first) + len(second)
    return {
        "rouge1": 200 * words.total() / max(1, total),
        "rouge2": 200 * pairs.total() / max(1, total - 2),
        "rougeL": 200 * lengths[-1] / max(1, total),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generated", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--source", default="")
    arguments = parser.parse_args()
    rows = pq.read_table(arguments.table).to_pylist()
    references = [row[arguments.text] for row in rows]
    lines = arguments.generated.read_text(encoding="utf-8").splitlines()
    systems = {"generated": [json.loads(line)["text"] for line in lines]}
    if arguments.source:
        systems["first words"] = [
            " ".join(row[arguments.source].split()[: len(row[arguments.text].split())]) for row in rows
        ]
    for name, texts in systems.items():
        scores = [rouge(text, reference) for text, reference in zip(texts, references, strict=True)]
        means = {key: round(sum(score[key] for score in scores) / len(scores), 1) for key in scores[0]}
        print(json.dumps({"system": name, "texts": len(texts), **means}))


if __name__ == "__main__":
    main()
