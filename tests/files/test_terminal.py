"""Names of strangers on a terminal: shown as they are, never obeyed."""

import io
import sys
import unicodedata
from pathlib import Path

import pytest

from l2i.files.terminal import escape_controls, make_console, print_lines, print_utf8, to_one_line

HOSTILE = "\x1b[31mRED\x1b]0;pwned\x07 \u202egnp.exe \x9b2J"
SHOWN = r"\x1b[31mRED\x1b]0;pwned\x07 \u202egnp.exe \x9b2J"


def test_control_codes_are_shown_as_escapes() -> None:
    assert escape_controls(HOSTILE) == SHOWN
    assert escape_controls("plain: äöü 漢字 👩‍💻 [/b]\tx\ny") == "plain: äöü 漢字 👩‍💻 [/b]\tx\ny"
    assert escape_controls("caf\udce9.csv") == r"caf\udce9.csv"
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


def test_what_unicode_calls_a_control_or_a_change_of_direction_is_escaped() -> None:
    marks = "\u061c\u200e\u200f"  # of direction, which are letters by their class
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for character in map(chr, range(0x3000)):
        is_control = unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in marks
        is_obeyed = is_control or unicodedata.bidirectional(character) in directions
        is_escaped = escape_controls(character) != character
        assert is_escaped == (is_obeyed and character not in "\n\t"), hex(ord(character))


def test_a_console_has_no_colours_and_the_width_it_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    make_console(width=20).print("12 True 'word' " * 2)
    make_console(quiet=True).print("nobody hears this")
    make_console(stderr=True).print("error 404")
    assert capsys.readouterr() == ("12 True 'word' 12 \nTrue 'word' \n", "error 404\n")


def test_bytes_follow_the_text_before_them_and_arrive_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        stream.write("first, ")
        print_utf8("then ä")
        assert (tmp_path / "out").read_bytes() == "first, then ä".encode()
