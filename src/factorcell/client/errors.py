"""What goes wrong where a service is asked: one hierarchy, whose texts name no person and nothing that was sent.

    ServiceError
        InvalidArgumentError        an argument cannot be sent
        UnreachableError            no answer came
        UnexpectedAnswerError       what came is no answer of a service
        RefusedError                the service says why not: a problem of RFC 9457
            InvalidRequestError     what was asked is wrong (4xx)
                KeyRefusedError     401, 403
                NotFoundError       404
                ConflictError       409
            BusyError               429, 503: later it may do it
            FailedError             all else, such as 500 and 502

Whoever catches the first catches all.
"""

from http import HTTPStatus

from factorcell.service.http.messages import Problem

PASSING = (429, 502, 503, 504)  # statuses after which the same request may succeed; 502 and 504 are a proxy's
UNBEGUN = ("too-many", "overloaded")  # problems of what was refused before anything was done


class ServiceError(Exception):
    """Why the call `asked` has no answer, after how many `tries`."""

    tries = 1
    passing = False  # whether the same call may succeed later
    begun = True  # whether the service may have done what it was asked

    def __init__(self, asked: str, message: str) -> None:
        super().__init__(asked, message)
        self.asked, self.message = asked, message

    def __str__(self) -> str:
        return f"{self.asked}: {self.message}" + (f" (tried {self.tries} times)" if self.tries > 1 else "")


class InvalidArgumentError(ServiceError):
    """An argument has a type or a value that JSON cannot have: nothing was sent."""

    begun = False


class UnreachableError(ServiceError):
    """No answer came, or not all of it; `begun`: whether the request may have arrived."""

    passing = True

    def __init__(self, asked: str, message: str, begun: bool = True) -> None:
        super().__init__(asked, message)
        self.begun = begun


class UnexpectedAnswerError(ServiceError):
    """What came is no answer of a service of this version: something else may live at the address."""


class RefusedError(ServiceError):
    """The service says why not, in a `problem`; `retry_after`: in how many seconds to come again, if it says so."""

    def __init__(self, asked: str, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(asked, f"{problem.status} {problem.title}" + (f": {problem.detail}" if problem.detail else ""))
        self.problem, self.retry_after = problem, retry_after
        self.passing = problem.status in PASSING
        self.begun = problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.kind not in UNBEGUN

    @property
    def status(self) -> int:
        """The code of HTTP."""
        return self.problem.status

    @property
    def title(self) -> str:
        """What problems of this kind are called."""
        return self.problem.title

    @property
    def detail(self) -> str:
        """What is wrong this time."""
        return self.problem.detail

    @property
    def type(self) -> str:
        """The address of the kind; `about:blank` where it was not the service that answered."""
        return self.problem.type

    @property
    def kind(self) -> str:
        """The name of the kind, such as `overloaded`; empty where it was not the service that answered."""
        return self.type.partition("#")[2]


class InvalidRequestError(RefusedError):
    """What was asked is wrong, and stays wrong however often it is asked."""


class KeyRefusedError(InvalidRequestError):
    """A key is missing, unknown, or does not allow this."""


class NotFoundError(InvalidRequestError):
    """Nothing is kept of the person."""


class ConflictError(InvalidRequestError):
    """The person is there already."""


class BusyError(RefusedError):
    """The service cannot do it now: there is too much to do, the key asks too often, or the store does not answer."""


class FailedError(RefusedError):
    """The service failed, or a proxy answered in its place."""


CLASSES: dict[int, type[RefusedError]] = {
    401: KeyRefusedError,
    403: KeyRefusedError,
    404: NotFoundError,
    409: ConflictError,
    429: BusyError,
    503: BusyError,
}


def refused(asked: str, problem: Problem, retry_after: float | None = None) -> RefusedError:
    """The error of a problem, by its status."""
    others = InvalidRequestError if problem.status // 100 == 4 else FailedError
    return CLASSES.get(problem.status, others)(asked, problem, retry_after)
