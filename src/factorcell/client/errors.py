"""The errors of a client; no message names a user or repeats what was sent."""

from factorcell.service.http.messages import Problem

PASSING = (429, 502, 503, 504)  # statuses after which the same request may succeed; 502 and 504 are a proxy's
UNBEGUN = ("too-many", "overloaded")  # problems of requests that were refused before anything was done


class ServiceError(Exception):
    """Why the call `asked` has no answer, after how many `tries`."""

    attempts = 1
    is_temporary = False  # whether the same call may succeed later
    may_have_run = True  # whether the service may have done what it was asked

    def __init__(self, asked: str, message: str) -> None:
        super().__init__(asked, message)
        self.operation, self.message = asked, message

    def __str__(self) -> str:
        return f"{self.operation}: {self.message}" + (f" (tried {self.attempts} times)" if self.attempts > 1 else "")


class InvalidArgumentError(ServiceError):
    """An argument has a type or a value that JSON cannot have: nothing was sent."""

    may_have_run = False


class UnreachableError(ServiceError):
    """No answer came, or not all of it; `may_have_run`: whether the request may have arrived."""

    is_temporary = True

    def __init__(self, asked: str, message: str, may_have_run: bool = True) -> None:
        super().__init__(asked, message)
        self.may_have_run = may_have_run


class UnexpectedAnswerError(ServiceError):
    """The answer is not that of a service of this version: something else may be at the address."""


class RefusedError(ServiceError):
    """The service refused the request.

    Attributes:
        status: The status code of HTTP.
        title: What problems of this kind are called.
        detail: What is wrong this time.
        type: The address of the kind; `about:blank` if it was not the service that answered.
        kind: The name of the kind, such as `overloaded`; empty if it was not the service that answered.
        retry_after: The seconds after which to try again, if the service says so.
    """

    def __init__(self, asked: str, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(asked, f"{problem.status} {problem.title}" + (f": {problem.detail}" if problem.detail else ""))
        self.status, self.title, self.detail, self.type = problem.status, problem.title, problem.detail, problem.type
        self.kind, self.retry_after = problem.type.partition("#")[2], retry_after
        self.is_temporary = problem.status in PASSING
        self.may_have_run = problem.status >= 500 and self.kind not in UNBEGUN


class InvalidRequestError(RefusedError):
    """The request is wrong, and stays wrong however often it is sent."""


class KeyRefusedError(InvalidRequestError):
    """A key is missing, unknown, or does not allow this."""


class NotFoundError(InvalidRequestError):
    """Nothing is kept of the user."""


class ConflictError(InvalidRequestError):
    """The user is there already."""


class BusyError(RefusedError):
    """The service is overloaded, the key asks too often, or the store does not answer."""


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
