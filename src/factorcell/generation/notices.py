"""Notices about generated texts: how they are drawn, and out-of-vocabulary words that they lack or continue."""

import difflib
import warnings
from collections.abc import Collection

from factorcell.config import Notice
from factorcell.generation.sampling import UnknownShare
from factorcell.model.run import Run

MIN_UNKNOWN_SHARE = 0.05  # mean probability of the unknown token from which on a notice reports it


def unknown_tokens(run: Run, text: str) -> dict[str, list[str]]:
    """Return the out-of-vocabulary tokens of `text`, each with similar tokens of the vocabulary."""
    tokens, unknown_id = run.tokenizer.split(text), run.tokenizer.specials.unknown
    tokens_with_ids = zip(tokens, run.tokenizer.encode(tokens), strict=True)
    unknown = dict.fromkeys(token for token, token_id in tokens_with_ids if token_id == unknown_id)
    return {token: difflib.get_close_matches(token, run.tokenizer.tokens, n=3) for token in unknown}


def report_request(run: Run, prompt: str, columns: Collection[str]) -> None:
    """Emit notices about a request for texts.

    They say that the run generates with its mixture, which words of the prompt are out of vocabulary, and what the
    model cannot express by the specified `columns` alone.
    """
    run.report_context(columns)
    if run.mixture is not None:
        remedy = "--no-ngram-mixture (in Python: Run.open(..., mixture=False)) leaves it out"
        warnings.warn(Notice(f"the texts are those of the mixture with n-gram counts; {remedy}"), stacklevel=2)
    described_words = [
        repr(word) + (f" (similar: {', '.join(map(repr, similar_words))})" if similar_words else "")
        for word, similar_words in unknown_tokens(run, prompt).items()
    ]
    if described_words:
        words = ", ".join(described_words)
        warnings.warn(Notice(f"prompt: words that are not in the vocabulary of {run.folder}: {words}"), stacklevel=2)


def report_unknown_share(share: UnknownShare) -> None:
    """Emit a `Notice` if out-of-vocabulary words were so probable that other words replace many of them."""
    if share.mean >= MIN_UNKNOWN_SHARE:
        problem = (
            f"out-of-vocabulary words (such as numbers and names) have a probability of {share.mean:.0%} on average"
        )
        warnings.warn(Notice(f"{problem}; they are never generated, and other words take their place"), stacklevel=2)
