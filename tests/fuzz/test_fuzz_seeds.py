"""Fuzzing starts from files that are read: otherwise it would test nothing but refusals."""

import pytest
from harmless import Check
from loaders import LOADERS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", LOADERS)
def test_whole_files_are_read(name: str, check: Check) -> None:
    read = [check(name, content) for content in LOADERS[name].seeds()]
    assert any(read)
