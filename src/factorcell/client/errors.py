"""The errors of a client. No message contains a user id or the content of a request."""

from factorcell.service.http.messages import Problem

# Statuses after which the same request may succeed later; proxies send 502 and 504.
TEMPORARY_STATUSES = (429, 502, 503, 504)
KINDS_WITHOUT_EFFECT = ("too-many", "overloaded")  # kinds of problems that mean that the request had no effect


class ServiceError(Exception):
    """A call that failed.

    Attributes:
        operation: The operation of the call.
        message: What went wrong.
        attempts: Number of times that the client tried the call.
        is_temporary: Whether the same call may succeed later.
        may_have_run: Whether the service may have performed the operation.
    """

    attempts = 1
    is_temporary = False
    may_have_run = True

    def __init__(self, operation: str, message: str) -> None:
        super().__init__(operation, message)
        self.operation, self.message = operation, message

    def __str__(self) -> str:
        attempts = f" (tried {self.attempts} times)" if self.attempts > 1 else ""
        return f"{self.operation}: {self.message}{attempts}"


class InvalidArgumentError(ServiceError):
    """An argument has a type or value that JSON cannot represent; nothing was sent."""

    may_have_run = False


class UnreachableError(ServiceError):
    """No response arrived, or only a part of it.

    Args:
        operation: The name of the operation.
        message: What failed.
        may_have_run: Whether the service may have performed the operation.
    """

    is_temporary = True

    def __init__(self, operation: str, message: str, may_have_run: bool = True) -> None:
        super().__init__(operation, message)
        self.may_have_run = may_have_run


class UnexpectedAnswerError(ServiceError):
    """This version of the client cannot read the response; another server may have sent it."""


class RefusedError(ServiceError):
    """The service, or a proxy in front of it, refused the request or failed.

    Attributes:
        status: The HTTP status code.
        title: The title of this kind of problem.
        detail: What is wrong with this request.
        type: The type of the problem; `about:blank` if another server, such as a proxy, answered.
        kind: The name of the kind, such as `overloaded`; empty if another server answered.
        retry_after: Seconds after which the call may be retried, or None if the response does not say so.

    Args:
        operation: The name of the operation.
        problem: The problem details of the response.
        retry_after: Seconds after which the call may be retried, or None if the response does not say so.
    """

    def __init__(self, operation: str, problem: Problem, retry_after: float | None = None) -> None:
        detail = f": {problem.detail}" if problem.detail else ""
        super().__init__(operation, f"{problem.status} {problem.title}{detail}")
        self.status, self.title, self.detail, self.type = problem.status, problem.title, problem.detail, problem.type
        _, _, self.kind = problem.type.partition("#")
        self.retry_after = retry_after
        self.is_temporary = problem.status in TEMPORARY_STATUSES
        self.may_have_run = problem.status >= 500 and self.kind not in KINDS_WITHOUT_EFFECT


class InvalidRequestError(RefusedError):
    """The request is invalid; repeating the same request does not help."""


class KeyRefusedError(InvalidRequestError):
    """The key is missing, unknown, or does not allow the request."""


class NotFoundError(InvalidRequestError):
    """No data is saved for the user."""


class ConflictError(InvalidRequestError):
    """The user exists already."""


class BusyError(RefusedError):
    """The service is overloaded, the key is used too often, or the store does not answer."""


class FailedError(RefusedError):
    """The service failed, or a proxy answered in place of the service."""


ERRORS_BY_STATUS: dict[int, type[RefusedError]] = {
    401: KeyRefusedError,
    403: KeyRefusedError,
    404: NotFoundError,
    409: ConflictError,
    429: BusyError,
    503: BusyError,
}
