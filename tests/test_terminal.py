"""What is shown of others' words."""

from __future__ import annotations

import pytest

from privsyn_flower.terminal import escaped, one_line


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
