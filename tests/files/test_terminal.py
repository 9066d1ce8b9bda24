"""Names of strangers on a terminal: shown as they are, never obeyed."""

import io
import sys

import pytest

from l2i.files.terminal import escape_controls, make_console, print_lines, print_utf8, to_one_line

HOSTILE = "\x1b[31mRED\x1b]0;pwned\x07 \u202egnp.exe \x9b2J"
SHOWN = r"\x1b[31mRED\x1b]0;pwned\x07 \u202egnp.exe \x9b2J"


def test_control_codes_are_shown_as_escapes() -> None:
    assert escape_controls(HOSTILE) == SHOWN
    assert escape_controls("plain: äöü 漢字 👩‍💻 [/b]\tx\ny") == "plain: äöü 漢字 👩‍💻 [/b]\tx\ny"
    assert escape_controls("\r\x00\x7f\u2066") == r"\r\x00\x7f\u2066"


def test_a_message_is_one_line() -> None:
    assert to_one_line(f"a\n\tb  {HOSTILE}\r\n") == f"a b {SHOWN}"


def test_lines_go_where_they_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(HOSTILE, 2)
    print_lines("x", stderr=True)
    assert capsys.readouterr() == (f"{SHOWN}\n2\n", "x\n")


@pytest.mark.parametrize("text", ["[/b]", "[bold]x[/bold]", ":smile:", "o[/b] is damaged"])
def test_a_console_takes_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_console(stderr=True).print(text)
    assert capsys.readouterr().err == f"{text}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_data_are_escaped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((io.StringIO(), HOSTILE), (Terminal(), SHOWN)):
        monkeypatch.setattr(sys, "stdout", stream)
        print_utf8(HOSTILE)
        assert stream.getvalue() == shown
