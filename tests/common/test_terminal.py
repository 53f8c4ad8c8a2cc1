"""What is shown of others' words."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest

from privsyn_flower.common.terminal import escaped, one_line, plain_log, without_places


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain: Größe, 水, 👩\u200d🔬, a\u3000b\n\tnext", None),  # as it is
        ("a\x1b[31mb\x00", "a\\x1b[31mb\\x00"),
        ("a\rb\x9b2J\x7f", "a\\rb\\x9b2J\\x7f"),
        ("a\u202eb\u2066\u200f\u2028", "a\\u202eb\\u2066\\u200f\\u2028"),
        ("path \udcff", None),  # a byte of a file's name
    ],
)
def test_what_steers_a_terminal_is_written_out(text: str, shown: str | None) -> None:
    assert escaped(text) == (text if shown is None else shown)


def test_one_line_is_short_and_plain() -> None:
    assert one_line(" a\n b\x1b\x00 c ") == "a b c"
    assert one_line("x" * 91) == "x" * 87 + "..."
    assert one_line("x" * 90) == "x" * 90


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FileNotFoundError: /home/alice/clients/x.npz", "FileNotFoundError: \u2026/x.npz"),
        ("no such file: '/home/al ice/my x/y.txt'", "no such file: '\u2026/y.txt'"),
        ("see ~/patients/a/b.txt, C:\\Users\\al\\x", "see \u2026/b.txt, \u2026/x"),
        ("a=/home/b/c,files:/home/b/d", "a=\u2026/c,files:\u2026/d"),
        ("sqlite:////home/a/b.db file:///a/b", "sqlite:\u2026/b.db file:\u2026/b"),
        ("at http://alice:hunter2@10.0.0.7:80/v1/x", "at http://10.0.0.7:80/v1/x"),
        ("(url 'https://a:b@c@host')", "(url 'https://host')"),
        ("either/or, 3/4, /tmp, </b>, hub:a/b, \\x1b, //a", None),  # as it is
    ],
)
def test_places_and_logins_are_not_passed_on(text: str, shown: str | None) -> None:
    assert without_places(text) == (text if shown is None else shown)


def test_flowers_lines_have_times_and_no_colours_but_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.supercore.logger import ConsoleHandler

    stream = io.StringIO()
    logger, handler = logging.getLogger("flwr-like"), ConsoleHandler(stream=stream)
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler(), handler])
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    plain_log("flwr-like")
    logger.error("first")
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    plain_log("flwr-like")
    logger.error("second")
    first, second = stream.getvalue().splitlines()
    assert first.startswith("\x1b[") and re.match(r"ERROR 20[\d-]+ [\d:,]+: +second$", second)
