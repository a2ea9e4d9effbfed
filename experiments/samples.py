"""What models say and show, in words: sentences, a hidden unit along a text, what words gain from a context."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from factorcell.config import UserError
from factorcell.evaluation import probing
from factorcell.evaluation.embeddings import words
from factorcell.evaluation.likelihood_ratios import explain
from factorcell.generation.generate import GenerationOptions, every, fill, generate
from factorcell.generation.infilling import InfillingOptions
from factorcell.model.run import Run
from study import Measured, Row

BEAM = GenerationOptions("beam", max_tokens=30, min_tokens=6, width=100, length_penalty=0.0)  # a most probable sentence
# The most probable filler where the text ends with the template: without an end a single word is always likelier, of
# which the text could go on. Of up to four words, as in the thesis.
FILLED = InfillingOptions(max_tokens=4, width=100, length_penalty=0.0, whole=True)
EXAMPLES = 30  # of each language, from which logistic regression learns as in the thesis
BOOSTED = 10  # words of table 4.5


def sentences(run: Run, contexts: Sequence[Mapping[str, Any]]) -> Measured:
    """A sentence for each context by beam search."""
    rows = generate(run, contexts, options=BEAM, unknown="group")
    return Measured({"sentences": [{"context": row["context"], "text": row["text"]} for row in rows]})


def indicated(run: Run, table: Any, target: str, value: str, texts: Sequence[str]) -> Measured:
    """The hidden unit that best indicates each value of a column that the run was not given.

    That of `value` along `texts`, and how many texts logistic regression tells from a few examples by their states.
    """
    every, values = probing.labelled(run, table, target)
    rows = probing.indicators(run, every, values)
    along = [one for row in rows if row["value"] == value for one in probing.along(run, texts, row["hidden_unit"])]
    fewest = min(row["texts"] for row in rows)
    told = probing.few_examples(probing.final_states(run, every), values, examples=min(EXAMPLES, fewest // 2))
    return Measured({"indicators": rows, "along": along, "few_examples": told})


def fillers(run: Run, templates: Sequence[str], column: str) -> Row:
    """What fills the gap of each template, with which a text ends, best for each value of a column, highest first."""
    values = list(reversed(every(run.schema, column)))
    contexts = [{column: value} for value in values]
    found = [fill(run, template, contexts, options=FILLED) for template in templates]
    return {
        "fillers": [{value: row["filler"] for value, row in zip(values, rows, strict=True)} for rows in found],
    }


def tried(name: str, make: Callable[[], Row]) -> Row:
    """What is made, or why not: in a trial too few words or values may be known."""
    try:
        return make()
    except UserError as error:
        return {name: {"none": str(error)}}


def ratios(run: Run, text: str, first: Row, second: Row) -> Row:
    """By how many nats each token of a text is likelier in the first context, most of all and in the softmax bias."""
    (row,) = explain([run], [text], {"first": first, "second": second}, unknown="group")
    return {"ratios": [[token["token"], token["ratio"]] for token in row["tokens"]]}


def boosted(run: Run, contexts: Sequence[Row]) -> Row:
    """The words that the softmax bias raises most in each context."""
    found = [words(run, context, count=BOOSTED, unknown="group") for context in contexts]
    names = [[row["token"] for row in rows if row["nats"] > 0] for rows in found]
    return {"boosted": [{"context": one, "words": own} for one, own in zip(contexts, names, strict=True)]}
