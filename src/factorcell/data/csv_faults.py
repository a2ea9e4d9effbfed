"""What is wrong with a CSV or TSV file: it is separated by other marks."""

from collections.abc import Sequence

ENDINGS = {",": ".csv", "\t": ".tsv"}
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


def of_header(names: Sequence[str], delimiter: str) -> str:
    """What an error adds about a header that lacks a column; empty where nothing is wrong with it."""
    mark = max((mark for mark in SEPARATORS if mark != delimiter), key=names[0].count)
    if len(names) > 1 or mark not in names[0]:
        return ""
    own = f"{ENDINGS[delimiter]} is separated by {SEPARATORS[delimiter]}"
    (other,) = (known for known in ENDINGS if known != delimiter)
    save = f"save it with {SEPARATORS[delimiter]}, or with {SEPARATORS[other]} as a {ENDINGS[other]}"
    advice = f"name the file {ENDINGS[mark]}" if mark in ENDINGS else save
    return f"; a {own}, this header seems to be by {SEPARATORS[mark]}: {advice}"
