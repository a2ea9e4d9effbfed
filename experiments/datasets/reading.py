"""What the sources share: texts cleaned, tables of commas, archives. A record that cannot be read is None."""

import csv
import io
import re
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence

from factorcell.config import UserError

from .repository import Repository

Row = dict[str, str | float]
Rows = Iterator[Row | None]  # None: there is a record, and it cannot be read

CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")  # those that are no blanks
LOST = "\ufffd"  # what stands for letters that an earlier reader could not decode

LONGEST = 1 << 30  # characters of a field


def clean(text: str) -> str:
    """In composed form (NFC), without control characters, one blank between words."""
    return " ".join(CONTROLS.sub("", unicodedata.normalize("NFC", text)).split())


def table(content: str) -> Iterator[list[str]]:
    """The lines of a table, fields of which may hold line breaks."""
    csv.field_size_limit(LONGEST)
    yield from csv.reader(io.StringIO(content, newline=""))


def records(content: str, where: str, required: Sequence[str]) -> Iterator[dict[str, str] | None]:
    """The lines of a table by the names in its first; None for one that has another number of fields.

    `UserError` unless all `wanted` names are there; `where` says what is read.
    """
    lines = table(content)
    names = [name.strip() for name in next(lines, [])]
    if missing := [name for name in required if name not in names]:
        raise UserError(f"{where}: no column {', '.join(missing)}; there are {', '.join(names)[:200] or 'none'}")
    for fields in lines:
        yield dict(zip(names, fields, strict=True)) if len(fields) == len(names) else None


def unpacked(source: Repository, path: str, ending: str) -> str:
    """The one file of an archive whose name has this end. `UserError` unless there is just one, of UTF-8."""
    try:
        with zipfile.ZipFile(io.BytesIO(source.read(path))) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending) and not name.startswith("__MACOSX")]
            if len(names) != 1:
                raise UserError(f"{source}: {path} has {len(names)} files *{ending}, not one")
            return archive.read(names[0]).decode("utf-8-sig")
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise UserError(f"{source}: {path} cannot be unpacked ({error})") from None
