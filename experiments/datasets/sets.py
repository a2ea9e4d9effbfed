"""The data sets that can be built: their columns, who reads them, and by what they are split."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import (
    agnews,
    commits,
    commonvoice9,
    dbpedia14,
    geotweets,
    hotels,
    hotels13,
    imdb,
    reddit_titles,
    scotus,
    womens_clothing,
)
from .reading import Rows
from .repository import Repository


@dataclass(frozen=True)
class DataSet:
    """`sources` (owner/name -> commit) of which `rows` reads texts and the columns `contexts`, `numbers` among them.

    `split` has options of `corpora.split`. With `history`, the rows are of commits and keep their order.
    """

    contexts: Sequence[str]
    sources: Mapping[str, str]
    rows: Callable[[Sequence[Repository]], Rows]
    numbers: Sequence[str] = ()
    split: Mapping[str, Any] = field(default_factory=dict)
    history: bool = False


def news(sources: Sequence[Repository]) -> Rows:
    """Articles as words with a blank between them."""
    return agnews.spaced(agnews.rows(sources))


NEWS = {
    "mhjabreel/CharCnn_Keras": "555590db4219b1243abb1918effd6a7425a2d75f",
    "jatin-12-2002/AG_News_Classification": "0671648872cdf3c46f43e05e5208bc57c8517ec1",
    "yxhong-tw/AG-News-Exercise": "0d786f2fd76ecfe0989a7ad3eaf9089e63890b12",
    "hhf-hd/NoisyAG-News": "94f5e5b24d49a64c0128caf90247869f991bd7c0",
    "jin756/NoisyAG-News": "9fb9d30b10aed92d783eb19ac173e4120426be47",
    "fxcawley/MetaRepICL": "6207945f07fe10f0e739dddf77991391fffcfd5f",
    "lst11111/bert-text-classification": "d52bf84e15f59794226916f08e74702b3f70389c",
    "vicrudakov/adaptive_supervised_ml": "c02b8de89fe65fa67c7f891f19ccb608677be96c",
}
TWEETS = {
    "saffolder/GeotaggedTweets": "ba25b3f9a9112f02cd0ed6cd605a43d6b473c8fd",
    "kaijio/geog458-lab2": "da9eed4394e21166146ddebceec36dd38bd662ff",
    "danellsaucy/GEOG465_Lab2": "e9c6a16213d0a3b05c809af6af1addd5d542fe86",
    "Johnson61799/458Lab2": "11283a41a8ec7d04ee518c951ee3ef436c9e4001",
    "notzulkifli/GEOG458_NBA_Geo-tagged_Tweets": "fdde6471fa49d43d3e27ec0508dcb0be6a3f0c3e",
    "anthealigeog/geog458lab2": "7ffbadb9a2ee7526af08007aeb7fcb41e8526246",
    "pktran/geog456_lab2": "f79747a2b5c2b0633a2f6dafd4f88c7b085212d0",
    "MysticTangerine/Geog458Lab2": "5e768cf78a29bdc15004259190b193809167eba7",
    "hudsop2/geog458lab2": "f0724af0cd6cd092b1a17be5c36d53c06babaa35",
    "LeoKwo/geog458lab2_leokwo": "d0db47d5ae5c04330e0ad94703f0c01af4627932",
    "kcroland/WA_tweets": "f352d829ceb8d3933bdead032c5918d1b4a22853",
    "floatyboat/geog458lab2": "8d7279adc416cc3037f5ea399095be213ac54efe",
    "samc99/TweetVisualization": "ea425a65696dad3e9500a9d0df6a31a4ac424292",
    "zubaidaal/GEOG548-Lab2": "b827c9ee87e833b4532c13f126b102e2a815b520",
    "HarmanHans/Lab3": "4fd0c540fda275444b71b967d372c45f50e1da6b",
    "juulesco/geog458_lab2": "849a14f9ed7f308bc41b40e9f6ab59dd04ac6705",
    "PYK396/Lab2": "b7901ef158be55868f1d96186d8a47253417a1f2",
    "lukehouser/Geog458Lab2": "0683fdb2e9d1897bc3a9f46fbf38e638766536e5",
    "anushmr/Geotagged-Tweets-MetGala": "c069b1becaa0868ec9750074a487dc79e8bd184a",
    "corinzarkowski/geog458-lab2": "e0742768d96f19480ece949ba3bb210668b50f45",
}
PROJECTS = {
    "git/git": "1a3e64c6c4a623626ff0687008732a8e007e2a1c",
    "rails/rails": "2a2db1e8d6d104ee0611efcae7eb023af65cff34",
    "apache/pig": "d795e8309d321a1b8b818e440348aab4ca3f8b5c",
    "huggingface/peft": "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40",
    "encode/starlette": "cb8f84f5284dc301ca7a31eb732b9e140769dd48",
    "pytorch/torchtune": "bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1",
    "pytorch/torchtitan": "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a",
}
LARGE = {"least": 10_000}  # of dev and of the test
SETS = {
    "agnews": DataSet(["section"], NEWS, agnews.rows),
    "agnews_words": DataSet(["section"], NEWS, news),
    "commits": DataSet(
        ["user", "project", "time"],
        PROJECTS,
        commits.rows,
        # whole authors, who have written enough to learn from
        split={"by": "user", "least": 20_000, "counted": range(20, sys.maxsize)},
        history=True,
    ),
    "commonvoice9": DataSet(
        ["language"], {"mozilla/voice-web": "e0bfbc4be9eb6a97f7dd92eb938200f09f04ba96"}, commonvoice9.rows, split=LARGE
    ),
    "dbpedia14": DataSet(
        ["category"], {"KEAML-JLU/DeepTextClustering": "b84d28cbe9db02e51b3f5fa9c6e31e540b3ad219"}, dbpedia14.rows
    ),
    "geotweets": DataSet(["lat", "lon"], TWEETS, geotweets.rows, numbers=["lat", "lon"]),
    "hotels": DataSet(
        ["hotel", "city", "rating"], {"smaemble/factcheckr": "2f2f9de32242bae53b53a88716002bc19518e20e"}, hotels.rows
    ),
    "hotels13": DataSet(
        ["hotel", "city", "rating"],
        {"xl2602/nlp-final-project": "d37c63653576e2526a6e94cac7dd7497141c7fe4"},
        hotels13.rows,
    ),
    "imdb": DataSet(
        ["rating", "movie"],
        {"PVidyadhar/Detection-of-Fraud-apps-using-Sentiment-Analysis": "81406d56e9c006de30f9d50737fd66177a4a1434"},
        imdb.rows,
    ),
    "reddit_titles": DataSet(
        ["subreddit"],
        {"umbrae/reddit-top-2.5-million": "d0efcade504b8ed735a48ddc2b15552fa924c9d9"},
        reddit_titles.rows,
        split=LARGE,
    ),
    "scotus": DataSet(
        ["case", "speaker", "role", "term"],
        {"walkerdb/supreme_court_transcripts": "f8c155e23ed871118de6368bab02b0dcb7585eee"},
        scotus.rows,
        split={**LARGE, "counted": range(1, 21)},  # "Yes." and its like tell nothing: they are trained on
    ),
    "womens_clothing": DataSet(
        ["department", "class", "rating", "age"],
        {"irmakozveren01/Womens-clothing-text-analysis": "18e084eca89ca3f0fe66ee29933876c2e8b909af"},
        womens_clothing.rows,
        numbers=["age"],
    ),
}
