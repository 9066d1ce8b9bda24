"""What a run leaves behind, changed in every way: config.json, result.json, metrics.jsonl."""

import json

import pytest
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from loaders import LOADERS
from seeds import configs
from strategies import ANY_JSON, cases, changed, damaged, json_files, nested

pytestmark = pytest.mark.slow

RESULT = [json.loads(content) for content in LOADERS["result"].seeds()]
METRICS = LOADERS["metrics"].seeds()
ROWS = [json.loads(line) for line in METRICS[0].splitlines()]


@cases(1200)
@given(content=json_files(configs()))
def test_any_config_is_read_or_refused(check: Check, content: bytes) -> None:
    check("config", content)


@cases(1000)
@given(content=json_files(RESULT))
def test_any_result_is_read_or_refused(check: Check, content: bytes) -> None:
    check("result", content)


@cases(1000)
@given(lines=st.lists(st.one_of(changed(ROWS), changed(ROWS), nested(ROWS), ANY_JSON), max_size=3))
def test_any_rows_of_metrics_are_read_or_refused(check: Check, lines: list[bytes]) -> None:
    check("metrics", b"\n".join(lines))


@cases(300)
@given(content=damaged(METRICS))
def test_damaged_metrics_are_read_or_refused(check: Check, content: bytes) -> None:
    check("metrics", content)
