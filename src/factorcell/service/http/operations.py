"""What can be asked: a table, from which routes, rights and the OpenAPI are made."""

from factorcell.service.http import batches, completing, people
from factorcell.service.http.messages import (
    AcceptAnswer,
    AcceptRequest,
    ClassifyAnswer,
    ClassifyRequest,
    CompleteAnswer,
    CompleteRequest,
    DeletedAnswer,
    Export,
    ForgetRequest,
    GenerateRequest,
    Health,
    PausedAnswer,
    Piece,
    ProfileAnswer,
    RemovedAnswer,
    RescoreAnswer,
    RescoreRequest,
    ScoreAnswer,
    ScoreRequest,
    UserAnswer,
)
from factorcell.service.http.site import Operation

LARGEST_EXPORT = 4 << 20  # bytes

_ONE = "/v1/users/{user}"
# fmt: off
OPERATIONS = (
    Operation("complete", "GET", "/v1/complete", "complete", "search", CompleteRequest, CompleteAnswer,
              completing.complete),
    Operation("complete", "POST", "/v1/complete", "complete", "search", CompleteRequest, CompleteAnswer,
              completing.complete),
    Operation("accept", "POST", "/v1/accept", "learn", "change", AcceptRequest, AcceptAnswer, completing.accept),
    Operation("show", "GET", _ONE, "users", "change", None, ProfileAnswer, people.show),
    Operation("delete", "DELETE", _ONE, "users", "change", None, DeletedAnswer, people.delete),
    Operation("export", "GET", f"{_ONE}/export", "users", "change", None, Export, people.export),
    Operation("forget", "POST", f"{_ONE}/forget", "users", "change", ForgetRequest, RemovedAnswer, people.forget),
    Operation("undo", "POST", f"{_ONE}/undo", "users", "change", None, RemovedAnswer, people.undo),
    Operation("pause", "POST", f"{_ONE}/pause", "users", "change", None, PausedAnswer, people.pause),
    Operation("resume", "POST", f"{_ONE}/resume", "users", "change", None, PausedAnswer, people.resume),
    Operation("import", "POST", "/v1/users", "admin", "change", Export, UserAnswer, people.restore,
              largest=LARGEST_EXPORT),
    Operation("score", "POST", "/v1/score", "complete", "batch", ScoreRequest, ScoreAnswer, batches.score),
    Operation("classify", "POST", "/v1/classify", "complete", "batch", ClassifyRequest, ClassifyAnswer,
              batches.classify),
    Operation("rescore", "POST", "/v1/rescore", "complete", "batch", RescoreRequest, RescoreAnswer, batches.rescore),
    Operation("generate", "POST", "/v1/generate", "complete", "batch", GenerateRequest, Piece, batches.generate,
              streams=True),
    Operation("ready", "GET", "/readyz", "", "change", None, Health, completing.ready),
)
# fmt: on
