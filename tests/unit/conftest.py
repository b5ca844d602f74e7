"""What holds after every test of the core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dask_otel.core.life.open_span import NOTHING


@pytest.fixture(autouse=True)
def _nothing_is_shared() -> Iterator[None]:
    """All open spans begin with the same empty dict: whoever writes to it gives it to each."""
    yield
    assert NOTHING == {}
