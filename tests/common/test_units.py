"""Units: English by its spaces, other scripts by ICU, nothing lost, no mark cut off."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.common.files import DataError
from privsyn_flower.common.units import beginning, pieces, spaced, units, unspaced, words

MIXED = "今天 ไทยเป็น かな \u3000é\u0301को😀👍🏽\u200d❤\ufe0f「。，(!"
ANYTHING = st.text(st.characters() | st.sampled_from(MIXED))
UNSPACED = {
    "Chinese": ("今天天气很好，我们去「公园」散步吧。", ["今天", "公园", "散步"]),
    "Japanese": ("吾輩は猫である。名前はまだ無い。", ["吾輩", "猫", "名前"]),
    "Thai": ("ภาษาไทยเป็นภาษาที่มีระดับเสียง", ["ภาษา", "ไทย", "เป็น"]),
    "Lao": ("ພາສາລາວເປັນພາສາ", ["ພາສາ", "ລາວ"]),
    "Khmer": ("ភាសាខ្មែរជាភាសាផ្លូវការ", ["ជា"]),
    "Burmese": ("မြန်မာဘာသာစကားသည်", ["သည်"]),
    "Tibetan": ("བོད་སྐད་ཀྱི་", ["བོད", "སྐད"]),
    "Javanese": ("ꦧꦱꦗꦮꦶ", ["ꦮꦶ"]),
    "emoji": ("😀👍🏽🇩🇪❤️👨\u200d👩\u200d👧", ["👍🏽", "🇩🇪", "❤️", "👨\u200d👩\u200d👧"]),
}


@pytest.mark.parametrize("name", UNSPACED)
def test_a_script_without_spaces_has_units(name: str) -> None:
    text, some = UNSPACED[name]
    found = units(text)
    assert len(found) > 2 and "".join(found) == text
    assert set(some) <= set(words(text))
    assert unspaced(text) == (name != "emoji")


@given(ANYTHING)
def test_nothing_is_lost_and_no_mark_is_cut_off(text: str) -> None:
    found, line = units(text), " ".join(text.split())
    assert "".join(found) == "".join(text.split())
    firsts = {word[0] for word in text.split()}  # a mark may begin what white space begins
    assert all(unicodedata.category(unit[0])[0] != "M" or unit[0] in firsts for unit in found)
    for size in (1, 3):
        cut = pieces(text, size)
        assert "".join("".join(cut).split()) == "".join(found)
        assert all(piece in line for piece in cut)  # slices of the text, no space put in or lost
    assert beginning(text, 0) == line and spaced(text).split() == found


@given(st.text(st.characters(codec="latin-1") | st.sampled_from("αβ жя 한국 नमस्ते عربي—…’")))
def test_a_script_with_spaces_is_cut_at_them(text: str) -> None:
    assert units(text) == text.split() and spaced(text) == text
    assert pieces(text, 2) == [
        " ".join(text.split()[i : i + 2]) for i in range(0, len(text.split()), 2)
    ]


def test_words_are_compared_without_punctuation() -> None:
    assert words("Don't stop-me, 3.5!") == ["don", "t", "stop", "me", "3", "5"]
    assert words("नमस्ते, दुनिया।") == ["नमस्ते", "दुनिया"]  # no cut at the vowels' marks
    assert words("Good 😀😀, 今天。") == ["good", "😀", "😀", "今天"]
    assert words("?! ...") == ["?!", "..."]  # a text of marks alone is a text
    assert words(" \n") == []


def test_without_icu_such_a_text_is_an_error_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    assert units("naïve café – 한국어") == ["naïve", "café", "–", "한국어"]
    with pytest.raises(DataError, match="pip install icu4py"):
        units("今天天气")
