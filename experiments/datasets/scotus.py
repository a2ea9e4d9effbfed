"""Oral arguments of the Supreme Court: a JSON transcript per sitting, TERM.DOCKET-tNN.json, and a row per turn."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from factorcell.errors import UserError

from .reading import Row, Rows
from .repository import Repository

FOLDER = "oyez/cases/"
NAME = re.compile(r"(\d{4})\.(.+)-t\d\d+\.json")
TERMS = range(1990, 2012)


def rows(sources: Sequence[Repository]) -> Rows:
    (source,) = sources
    for path in source.paths(FOLDER, ".json"):
        name = NAME.fullmatch(path.removeprefix(FOLDER))
        if name is None or int(name[1]) not in TERMS:
            continue
        try:
            content = json.loads(source.read(path))
        except ValueError:
            raise UserError(f"{source}: {path} is not JSON") from None
        for turn in turns(content):
            who = turn.get("speaker") or {}
            text = " ".join((block.get("text") or "").strip() for block in turn.get("text_blocks") or [])
            case: Row = {"case": f"{name[1]}.{name[2]}", "term": name[1]}
            yield {"text": text, **case, "speaker": who.get("identifier") or "unknown", "role": role(who)}


def turns(transcript: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for section in (transcript.get("transcript") or {}).get("sections") or []:
        yield from section.get("turns") or []


def role(speaker: dict[str, Any]) -> str:
    """Return the role of a speaker; justices are recognised by the first of their roles (a list or a dict)."""
    if not speaker.get("identifier"):
        return "unidentified"
    listed = speaker.get("roles") or []
    roles = list(listed.values()) if isinstance(listed, dict) else listed
    return "justice" if roles and (roles[0] or {}).get("type") == "scotus_justice" else "advocate"
