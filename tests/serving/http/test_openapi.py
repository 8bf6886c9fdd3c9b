"""The OpenAPI page is true: whatever it lets one ask is answered as it says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.http.doubles import TENANTS, running

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def key_for(path):
    return {"Authorization": f"Bearer key-of-{'the-admin' if path.startswith('/admin') else 'anna'}"}


def check_operation(operation, examples):
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def check(case):
        response = case.call(headers=key_for(operation.path), timeout=10)
        case.validate_response(response, checks=CHECKS)

    check()


def check_all(examples):
    with running(keys=TENANTS) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        assert len(operations) == len(server.app.endpoints)
        for operation in operations:
            check_operation(operation, examples)
        server.wait_until(lambda: not server.group.open)


def test_every_operation():
    check_all(8)


@pytest.mark.long
def test_every_operation_long():
    check_all(300)
