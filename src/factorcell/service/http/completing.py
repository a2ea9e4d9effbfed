"""What is asked while somebody types: completions, and that a text was accepted."""

from factorcell.service.engine import CompletionRequest, Completions
from factorcell.service.http.messages import (
    AcceptAnswer,
    AcceptRequest,
    CompleteAnswer,
    CompleteRequest,
    Health,
    Result,
)
from factorcell.service.http.site import Call, Site

SPARE = 0.8  # share of the time that is left which a search takes; the rest is for sending its answer


def arrive(site: Site, asked: CompleteRequest, key: str) -> float:
    """Note the keystroke of a session; the seconds within which it is answered."""
    if asked.session is not None and asked.seq is not None:
        of = key, asked.session
        site.newest.put(of, max(asked.seq, site.newest.get(of) or 0))
    return site.settings.deadline if asked.deadline_ms is None else asked.deadline_ms / 1000


def complete(site: Site, call: Call) -> CompleteAnswer:
    """Suggest texts that go on from what is typed."""
    asked: CompleteRequest = call.asked
    if _superseded(site, call):
        site.metrics.degraded.labels("superseded").inc()
        return CompleteAnswer(results=[], degraded="superseded", seq=asked.seq)
    found = site.service.complete(
        CompletionRequest(
            asked.query,
            user=asked.user,
            cursor=asked.cursor,
            context=asked.context,
            limit=asked.limit,
            seconds=call.turn.seconds * SPARE,
            private=not asked.learn,
            stop=call.turn.stop,
        )
    )
    if found.degraded:
        site.metrics.degraded.labels(found.degraded).inc()
    return CompleteAnswer(
        results=_results(found, asked.explain),
        degraded=found.degraded,
        user_version=found.user_version,
        seq=asked.seq,
    )


def accept(site: Site, call: Call) -> AcceptAnswer:
    """Learn and keep a text that somebody accepted; once it is answered, it is on disk."""
    asked: AcceptRequest = call.asked
    done = site.service.accept(asked.user, asked.text, context=asked.context, key=asked.idempotency_key)
    site.metrics.accepts.labels(done.outcome).inc()
    return AcceptAnswer(
        outcome=done.outcome,
        number=done.number,
        user_version=done.user_version,
        why=done.why,
        truncated=done.truncated,
    )


def ready(site: Site, call: Call) -> Health:
    """Whether requests can be answered: the model is proven, and the store can be written."""
    site.readiness.ask(site.service.check)
    return Health()


def _superseded(site: Site, call: Call) -> bool:
    """Whether a later keystroke of the session is there, so that nobody looks at this one's answer."""
    asked: CompleteRequest = call.asked
    if asked.session is None or asked.seq is None:
        return False
    return (site.newest.get((call.key, asked.session)) or 0) > asked.seq


def _results(found: Completions, explain: bool) -> list[Result]:
    return [
        Result(
            text=one.text,
            source=one.source,
            score=one.log_probability,
            slips=one.slips,
            parts=dict(one.parts) if explain else None,
        )
        for one in found.results
    ]
