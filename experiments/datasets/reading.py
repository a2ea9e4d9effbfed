"""Functions that several sources share: cleaning of texts, CSV tables and archives."""

import csv
import io
import re
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence

from factorcell.errors import UserError

from .repository import Repository

Row = dict[str, str | float]
Rows = Iterator[Row | None]  # None is an unreadable record

CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]"
)  # control characters other than white space
REPLACEMENT = "\ufffd"  # stands for characters that were lost in an earlier decoding

MAX_FIELD_LENGTH = 1 << 30  # maximum length of a field, in characters


def clean(text: str) -> str:
    """Return a text in composed form (NFC), without control characters, with one blank between words."""
    return " ".join(CONTROLS.sub("", unicodedata.normalize("NFC", text)).split())


def table(content: str) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_FIELD_LENGTH)
    yield from csv.reader(io.StringIO(content, newline=""))


def records(content: str, where: str, required: Sequence[str]) -> Iterator[dict[str, str] | None]:
    """Read the lines of a table as dicts; yield None for a line with another number of fields than the header."""
    lines = table(content)
    names = [name.strip() for name in next(lines, [])]
    if missing := [name for name in required if name not in names]:
        raise UserError(f"{where}: no column {', '.join(missing)}; it has {', '.join(names)[:200] or 'no columns'}")
    for fields in lines:
        yield dict(zip(names, fields, strict=True)) if len(fields) == len(names) else None


def read_from_zip(source: Repository, path: str, ending: str) -> str:
    """Read the only file of an archive whose name ends with `ending`."""
    try:
        with zipfile.ZipFile(io.BytesIO(source.read(path))) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending) and not name.startswith("__MACOSX")]
            if len(names) != 1:
                raise UserError(f"{source}: {path}: expected one file *{ending}, got {len(names)}")
            return archive.read(names[0]).decode("utf-8-sig")
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise UserError(f"{source}: {path} cannot be unpacked ({error})") from None
