"""Made-up results of which pages are drawn: runs, the demo, contexts, explanations and trials."""

import math
from typing import Any

import numpy as np

from factorcell.evaluation.comparison import ComparedModel, compare_models
from factorcell.evaluation.text_figures import TextSums

Row = dict[str, Any]

GAIN = "gain_over_unknown_context"
HOSTILE = '<script>alert("x")</script> & co'
MODELS = ("unadapted", "softmaxbias", "concatcell", "factorcell")
BETWEEN = ["rating=5", "rating=<1>"]


def posterior(lat: float, lon: float) -> Row:
    lats, lons = np.arange(-56, 76, 4.0), np.arange(-180, 180, 4.0)
    bell = np.exp(-((lats[:, None] - lat) ** 2 + (lons[None, :] - lon) ** 2) / 60)
    return {"lat": lats.tolist(), "lon": lons.tolist(), "probability": (bell / bell.sum()).tolist()}


def curves() -> list[Row]:
    return [
        {
            "model": m,
            "split": "dev",
            "step": i,
            "tokens": 10 * i,
            "seconds": 9.0 * i,
            "perplexity": 9 + 5 / i - k / 2,
        }
        for k, m in enumerate(MODELS)
        for i in range(1, 8)
    ]


def demo_results() -> Row:
    numbers = [(10.9, None), (10.2, 0.51), (8.9, 0.69), (8.43, 0.713)]
    size = {"parameters": 231_234, "minutes": 1.2}
    models = [
        ComparedModel(m, [{"perplexity": p, "accuracy": a, "majority": 0.1, **size}], [{}])
        for m, (p, a) in zip(MODELS, numbers, strict=True)
    ]
    return {
        "minutes": 5.23,
        "machine": "2 CPU cores",
        "texts": 219_607,
        "models": compare_models(models),
        "curves": curves(),
        "names": [
            {"place": f"Place {i}", "lat": -33.4, "lon": 151.2, "samples": ["Ōyashiki", HOSTILE]} for i in range(10)
        ],
        "maps": [
            {"text": "Nakamura", **posterior(36, 138), "true": (35.0, 136.0)},
            {"text": HOSTILE, **posterior(-12, -76), "true": (0.0, 0.0)},
        ],
        "countries": [{"country": "Côte d’Ivoire", "accuracy": 0.5, "count": 1500}],
        "confusion": {"labels": ["Italy", "Peru"], "counts": [[8, 2], [1, 9]]},
        "prior": "all points of a grid",
        "cautions": [],
    }


def text_sums(nats: float, judged: float = 1.0) -> TextSums:
    """Return the sums of 40 texts of ten targets."""
    return TextSums("a", np.full(40, 10 * nats), np.full(40, 10 * judged))


def evaluation(perplexity: float, known: float = 60.0, table: str = "test.csv", **more: Any) -> Row:
    """Return the result of an evaluation of 40 texts of words, with their figures."""
    figures = {"perplexity": text_sums(math.log(perplexity))}
    row = {"kind": "evaluate", "table": table, "unit": "word", "perplexity": perplexity, "perplexity_known": known}
    return {**row, "texts": 40, "figures": figures, **more}


def gain(point: float, distance: float) -> Row:
    """Return a gain over an unknown context, with its interval."""
    return {GAIN: point, f"{GAIN}_low": point - distance, f"{GAIN}_high": point + distance}


def two_runs() -> list[Row]:
    plain = {
        "folder": "runs/a",
        "title": "hotels unadapted",
        "is_adapted": False,
        "config": {"data": {"text": "review"}, "model": {"adapt": (), "rank": 12}},
        "results": [evaluation(80.123, 70.0)],
        "log": [{**row, "model": "x"} for row in curves()[:7]],
    }
    rows = [
        {"value": f"{HOSTILE} {i}", "count": 50 + i, "perplexity": 70.0, **gain(0.1 - i / 50, 0.03)} for i in range(9)
    ]
    columns = {"rating": {"texts": 40, **gain(0.16, 0.02)}, HOSTILE: {"texts": 40, **gain(-0.01, 0.015)}}
    confusion = {"labels": ["1", "5"], "counts": [[8, 2], [1, 9]]}
    values = [{"value": "1", "count": 10, "precision": 0.888, "recall": 0.8, "f1": 0.84, "auc": 0.9}]
    return [
        plain,
        {
            **plain,
            "folder": "runs/b",
            "title": "hotels FactorCell",
            "is_adapted": True,
            "config": {"data": {"text": "review"}, "model": {"adapt": ("concat", "factor"), "rank": 12}},
            "gains": {"texts": 40, **gain(0.21, 0.02), "columns": columns},
            "words": [
                {"context": f"rating={value}", "rows": [{"token": f"word{n}", "nats": 1.5 - n / 4} for n in range(13)]}
                for value in (5, 1)
            ],
            "results": [
                evaluation(72.0, 63.0, by={"city": rows, "rating": [{"value": "5", "count": 3, "perplexity": 6.5}]}),
                {
                    "kind": "classify",
                    "table": "test.csv",
                    "target": "rating",
                    "classifier": "model",
                    "texts": 40,
                    "accuracy": 0.85,
                    "majority": 0.5,
                    "macro_f1": 0.8,
                    "values": values,
                    "confusion": confusion,
                    "figures": {},
                },
            ],
            "cautions": [f"{HOSTILE} stopped"],
        },
    ]


def contexts_results() -> Row:
    """Return made-up results of `factorcell contexts`: neighbours, words and maps of two kinds."""
    random = np.random.default_rng(0)
    points: list[Row] = [
        {"value": f"Town {n}", "count": 90 - n, "x": float(x), "y": float(y), "group": f"region {n % 4}"}
        for n, (x, y) in enumerate(random.normal(size=(60, 2)) + 3 * random.normal(size=(4, 2))[np.arange(60) % 4])
    ]
    heights = [{**point, "number": number} for number, point in enumerate(points)]
    token_rows = [{"token": f"word{n}", "nats": 2.0 - n / 4} for n in range(17)]
    return {
        "variable": "city",
        "values": 60,
        "neighbours": [
            {"value": "Town 1", "near": f"Town {n}", "count": 9, "cosine": 1 - n / 99} for n in range(2, 12)
        ],
        "words": [{"context": "rating=5", "against": "the expected context", "rows": token_rows}],
        "maps": [
            {"column": "region", "points": points, "share": 0.75},
            {"column": "height", "points": heights, "share": 0.75},
        ],
        "cautions": ["runs/hotels: its training stopped (step 40 of 90); interpret its use of contexts with caution"],
    }


def many_runs() -> list[Row]:
    """Return six runs with long names, of which the report has a wide table."""
    plain, adapted = two_runs()
    runs = [plain, adapted]
    for number in range(4):
        perplexity = 71.0 - number
        name = {"folder": f"runs/hotels/a-long-name-{number}", "title": f"hotels of a long name {number}"}
        results = [evaluation(perplexity, bits_per_byte=1.4, gain_over_unknown_context=0.04)]
        runs.append({**adapted, **name, "results": results})
    return runs


def token(text: str, ratio: float, known: bool = True) -> Row:
    nats = dict(zip(BETWEEN, (3.0, 3.0 + ratio), strict=True))
    posterior = dict(zip(BETWEEN, (0.75, 0.25), strict=True))
    return {"token": text, "known": known, "nats": nats, "posterior": posterior, "ratio": ratio}


def row(*tokens: Row, **more: Any) -> Row:
    """Return the row of a text of words."""
    total = {name: sum(each["nats"][name] for each in tokens) for name in BETWEEN}
    text = " ".join(each["token"] for each in tokens)
    whole = {"text": text, "tokenizer": "word", "nats": total, "posterior": tokens[-1]["posterior"]}
    return {**whole, "ratio": sum(each["ratio"] for each in tokens), "tokens": list(tokens), **more}


ROW = row(token("<b>lovely</b>", 2.25), token("room", 0.1), token("kvetch", -0.6, False), token("</s>", -1.5))
