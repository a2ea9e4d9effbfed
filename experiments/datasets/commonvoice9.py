"""Sentences in nine languages, written to be read aloud: files of collections with a sentence per line.

Only collections of running text are used: no addresses, towns, laws, proverbs or drills.
"""

from collections.abc import Sequence

from corpora import text_hash

from .reading import Rows, clean
from .repository import Repository

FOLDER = "server/data/"
COLLECTED = "sentence-collector.txt"
# The last collection of a language contributes only as many sentences as the others leave of `MAX_SENTENCES`.
FILES = {
    "ca": (
        *("common-voice-sentences.txt", "programari-lliure-llibre.txt", "riuraueditors.txt", COLLECTED),
        *("softcatala.txt", "tocqueville.txt"),
    ),
    "de": (COLLECTED,),
    "en": (COLLECTED,),
    "es": (COLLECTED,),
    "eu": ("argia01.txt", "librezale01.txt", COLLECTED, "wiki.eu.txt"),
    "fr": ("issue2259_deleted_export_readd_fixed.txt",),
    "gl": (COLLECTED,),
    "it": (COLLECTED, "frasi.txt"),
    "pt": (COLLECTED,),
}
MAX_SENTENCES = 16_500  # of a language
MIN_WORDS = 2  # of a sentence


def rows(sources: Sequence[Repository]) -> Rows:
    """Yield sentences with their language; a collection that is too long contributes those with the lowest hashes."""
    (source,) = sources
    for language, names in FILES.items():
        left = MAX_SENTENCES
        for name in names:
            lines = source.text(f"{FOLDER}{language}/{name}").split("\n")
            sentences = {text for line in lines if len((text := clean(line)).split()) >= MIN_WORDS}
            for text in sorted(sentences, key=text_hash)[:left]:
                yield {"text": text, "language": language}
            left -= min(left, len(sentences))
