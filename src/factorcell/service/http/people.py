"""What is asked about one person: shown, exported and imported, forgotten, paused."""

from typing import TypeVar

import msgspec

from factorcell.service.engine import UserExistsError
from factorcell.service.http.messages import (
    DeletedAnswer,
    Export,
    ForgetRequest,
    Kept,
    PausedAnswer,
    ProfileAnswer,
    RemovedAnswer,
    UserAnswer,
)
from factorcell.service.http.problems import ProblemError
from factorcell.service.http.site import Call, Site

T = TypeVar("T")


def show(site: Site, call: Call) -> ProfileAnswer:
    """All that is kept of a person."""
    found = _found(site.service.show(call.user))
    texts = [Kept(number=one.number, text=one.text, time=one.time, context=one.context) for one in found.texts]
    return ProfileAnswer(
        user=found.user,
        version=found.version,
        accepted=found.accepted,
        paused=found.paused,
        learned=found.learned,
        texts=texts,
    )


def export(site: Site, call: Call) -> Export:
    """All that a person gave, to be taken along; `POST /v1/users` takes it back."""
    return msgspec.convert(_found(site.service.export(call.user)), Export)


def restore(site: Site, call: Call) -> UserAnswer:
    """Keep a person as they were exported, and learn them soon."""
    asked: Export = call.asked
    try:
        return UserAnswer(user=site.service.restore(msgspec.to_builtins(asked)))
    except UserExistsError as error:
        raise ProblemError("conflict", str(error)) from None


def delete(site: Site, call: Call) -> DeletedAnswer:
    """Delete all of a person."""
    return DeletedAnswer(deleted=site.service.delete(call.user))


def forget(site: Site, call: Call) -> RemovedAnswer:
    """Delete a text of a person, however often it was accepted, and all that was learned of it."""
    asked: ForgetRequest = call.asked
    return RemovedAnswer(removed=site.service.forget(call.user, asked.text))


def undo(site: Site, call: Call) -> RemovedAnswer:
    """Delete the newest text of a person, and all that was learned of it."""
    return RemovedAnswer(removed=site.service.undo(call.user))


def pause(site: Site, call: Call) -> PausedAnswer:
    """Keep and learn nothing of a person until it is resumed."""
    site.service.pause(call.user)
    return PausedAnswer(paused=True)


def resume(site: Site, call: Call) -> PausedAnswer:
    """Keep and learn what a person accepts, again."""
    site.service.pause(call.user, False)
    return PausedAnswer(paused=False)


def _found(value: T | None) -> T:
    if value is None:
        raise ProblemError("not-found", "nothing is kept of this person")
    return value
