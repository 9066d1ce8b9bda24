"""Images as users, ImageNet and MTFL lay them out: damaged files, and PNGs with right checksums."""

import pytest
from harmless import Check
from hypothesis import given
from loaders import LOADERS
from strategies import cases, files

pytestmark = pytest.mark.slow


@cases(700)
@given(content=files(LOADERS["image"].seeds()))
def test_any_image_is_read_or_refused(check: Check, content: bytes) -> None:
    check("image", content)


@cases(400)
@given(content=files(LOADERS["png"].seeds()))
def test_any_png_with_right_checksums_is_read_or_refused(check: Check, content: bytes) -> None:
    check("png", content)
