"""Ten thousand requests made up from the OpenAPI: no fault of ours, and every answer is as it is described."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.applications import Starlette

from factorcell.service.engine import Service
from factorcell.service.http.application import application
from factorcell.service.http.documentation import openapi
from factorcell.service.http.operations import OPERATIONS
from factorcell.service.http.site import Operation, Settings, Site

pytestmark = pytest.mark.slow
REQUESTS = 10_000


@pytest.fixture
def app(service: Service) -> Starlette:
    """The application."""
    return application(Site(service, Settings(deadline=5.0)))


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
@pytest.mark.filterwarnings("ignore")
def test_no_request_is_a_fault(one: Operation, app: Starlette) -> None:
    """What is valid by the description may yet be refused: no schema says that a cursor is within its query."""
    schemathesis = pytest.importorskip("schemathesis", reason="making up requests needs the extra slow")
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    schema = schemathesis.openapi.from_dict(openapi())
    schema.app = app
    answered: list[int] = []

    @settings(max_examples=REQUESTS // len(OPERATIONS) + 1, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[one.path][one.method].as_strategy())
    def ask(case: Any) -> None:
        answered.append(case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code)

    ask()
    assert len(answered) > REQUESTS // len(OPERATIONS)
    assert max(answered) < 500
