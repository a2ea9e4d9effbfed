"""Sentences in nine languages that people were asked to read aloud: a file a collection, a sentence a line.

Of each language those collections are taken that are running text: no addresses, towns, laws, proverbs or drills.
"""

from collections.abc import Sequence

from corpora import text_hash

from .reading import Rows, clean
from .repository import Repository

FOLDER = "server/data/"
COLLECTED = "sentence-collector.txt"
# The last collection of a language fills up what the others leave free.
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
MOST = 16_500  # sentences of a language
SHORTEST = 2  # words


def rows(sources: Sequence[Repository]) -> Rows:
    """A sentence and its language; of a collection that is too long those whose places are smallest."""
    (source,) = sources
    for language, names in FILES.items():
        left = MOST
        for name in names:
            lines = source.text(f"{FOLDER}{language}/{name}").split("\n")
            sentences = {text for line in lines if len((text := clean(line)).split()) >= SHORTEST}
            for text in sorted(sentences, key=text_hash)[:left]:
                yield {"text": text, "language": language}
            left -= min(left, len(sentences))
