"""Fixtures of the tests on real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live import Server, serve


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The shipped models on b200, directives on."""
    with serve("--hardware", "b200", "--enable-directives") as running:
        yield running
