"""The sizes of our texts and models, where print has tables 3.1, 3.2, 4.1 and 4.2."""

from collections.abc import Callable, Mapping

from factorcell.config import PAPER_MODELS
from pages.markdown import shown, with_none
from pages.results import Results
from tacl import SETS
from thesis_sixteen import WHOLE
from thesis_subreddits import ADAPTED

TABLES = {  # experiment -> what it is of, its models that adapt nothing and all
    **{f"tacl_{name}": (f"{one.printed}: {name}", PAPER_MODELS[0], PAPER_MODELS[-1]) for name, one in SETS.items()},
    "reddit_titles": ("table 3.3: communities", "unadapted", WHOLE),
    "subreddits": ("table 3.5: communities", "unadapted", ADAPTED),
    "commonvoice9": ("table 3.6: languages", "unadapted", WHOLE),
    "scotus": ("table 3.7: oral arguments", "unadapted", WHOLE),
    "queries": ("table 5.2: completion", "unadapted", "factor"),
    "sparse": ("table A.1: hotels", "none", "low_rank_each+sparse-1"),
}


PARTS = ("embedding", "hidden", "context")  # sizes of a model whose options end with "_size"

Printed = Mapping[str, Mapping[str, str]]


def table(read: Callable[[str], Results], published: Printed) -> str:
    """A line for each table, what is `published` of it in brackets; ranks of models that have the FactorCell's part."""
    lines = []
    for name, (what, *both) in TABLES.items():
        plain, adapted = map(read(name).first, both)
        if not plain or not adapted:
            continue
        training, model = plain["config"]["training"], adapted["config"]["model"]
        targets = plain["dev"]["steps"] * training["batch_tokens"] / training["epochs"]
        own = {"targets": f"{targets / 1e6:.1f}", "texts": f"{plain['texts']:,}", "judged": f"{plain['targets']:,}"}
        own |= {part: str(model[f"{part}_size"]) for part in PARTS}
        own["rank"] = str(model["rank"]) if "factor" in model["adapt"] else ""
        own |= {"passes": shown(training["epochs"], "g"), "parameters": f"{plain['parameters']:,}"}
        own["all"] = f"{adapted['parameters']:,}"
        printed = published.get(SETS[name.removeprefix("tacl_")].printed if name.startswith("tacl_") else name, {})
        lines.append([what, *(beside(value, printed.get(key, "")) for key, value in own.items())])
    heads = ["millions of training targets, at most", "test texts", "test targets"]
    heads += ["embedding", "hidden units", "context vector", "rank", "passes", "parameters", "of the adapted model"]
    return with_none(["table", *heads], lines)


def beside(ours: str, printed: str) -> str:
    """A size of ours with the printed one."""
    return f"{ours} ({printed})" if ours and printed else ours
