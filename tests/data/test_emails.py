"""E-mails: users are senders, by their own words alone; an invented archive, and hostile ones."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsyn_flower.config import DataConfig
from privsyn_flower.data import DataError, Federation, emails, prepare
from privsyn_flower.data.emails import (
    LARGE,
    NO_FILE,
    NO_TEXT,
    NOBODY,
    REPLACED,
    UNREADABLE,
    Mail,
    mail_senders,
    own_paragraphs,
    public_mails,
    read_mail,
)
from privsyn_flower.data.findings import LeftOut
from privsyn_flower.data.groups import Reading
from privsyn_flower.data.messages import Joined

HAM = "package/data/easy-ham-1"
CONFIG = DataConfig(source="emails", min_words=4)


def mail(sender: str, body: str, more: str = "") -> bytes:
    return f"From {sender}  Thu Aug 22\nFrom: {sender}\n{more}Subject: tea\n\n{body}".encode()


def pack(path: Path, files: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry in others:
            archive.addfile(entry)
    return path


def read(place: Path) -> tuple[dict[str, list[str]], LeftOut, Joined]:
    left_out, joined = LeftOut(), Joined()
    groups = mail_senders(str(place), "data.path", CONFIG, left_out, joined)
    found = {group.name: [sample.text for sample in group.samples] for group in groups}
    return found, left_out, joined


FILES = {
    f"{HAM}/2.txt": mail('"Ann Example" <Ann@Example.org>', "The second kettle is on its way now."),
    f"{HAM}/1.txt": mail(
        "ann@example.org",
        "Dear list,\n\nthe kettle is broken again today.\n\n"
        "On Monday Bob wrote:\n> I have a kettle for you\n\nThank you for asking so kindly.\n"
        "-- \nAnn, who likes kettles a lot",
    ),
    f"{HAM}/1.json": b'{"text": "no e-mail"}',
    "package/data/hard-ham-1/3.txt": mail("bob@example.org", "I have one kettle to give away."),
    "package/data/spam-1/4.txt": mail("spam@example.org", "Buy these kettles now, all of them."),
}


def test_senders_have_their_own_words_alone(tmp_path: Path) -> None:
    found, _, joined = read(pack(tmp_path / "mails.tgz", FILES))
    assert sorted(found.values()) == [
        ["Dear list, the kettle is broken again today.", "Thank you for asking so kindly.",
         "The second kettle is on its way now."],
        ["I have one kettle to give away."],
    ]  # fmt: skip
    assert not any("@" in name or "ann" in name for name in found)
    assert (joined["messages"], joined["people"], joined["texts"]) == (3, 2, 4)


def test_a_folder_is_read_as_an_archive_is(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / HAM / "link").symlink_to("/etc/passwd")
    found, left_out, _ = read(tmp_path / "in")
    assert found == read(pack(tmp_path / "mails.tgz", FILES))[0]
    assert left_out[NO_FILE] == 1


def test_hostile_mails_are_counted_and_take_nothing_from_others(tmp_path: Path) -> None:
    plain = "Content-Type: text/plain"
    hostile = {
        f"{HAM}/a": b"no header at all",
        f"{HAM}/b": b"From: <>\n\nNobody wrote these words here.",
        f"{HAM}/c": mail("c@example.org", "<p>hi", "Content-Type: text/html\n"),
        f"{HAM}/d": mail("d@example.org", "x" * (emails.MAIL_BYTES + 1)),
        f"{HAM}/e": mail("e@example.org", "four words and more", f"{plain}; charset=nope\n"),
        f"{HAM}/f": mail("f@example.org", "one two three four ") + b"\xff",
        f"{HAM}/../../../../tmp/g.txt": mail("g@example.org", "a name that climbs up is a name"),
    }
    link, device = tarfile.TarInfo(f"{HAM}/link"), tarfile.TarInfo(f"{HAM}/device")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    place = pack(tmp_path / "mails.tgz", FILES | hostile, link, device)
    before = set(tmp_path.rglob("*"))
    found, left_out, joined = read(place)
    usual = read(pack(tmp_path / "usual.tgz", FILES))[0]
    assert usual.items() <= found.items() and len(found) == len(usual) + 5
    assert list(found.values()).count([]) == 2  # c and d are users, without text
    assert (left_out[NOBODY], left_out[NO_TEXT], left_out[LARGE], left_out[NO_FILE]) == (2, 1, 1, 2)
    assert joined["repaired"] == 1
    assert "1 held characters that could not be decoded" in joined.summary("emails")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "usual.tgz"}  # nothing is unpacked


def test_an_archive_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = pack(tmp_path / "mails.tgz", FILES)
    monkeypatch.setattr(emails, "ENTRIES", 2)
    with pytest.raises(
        DataError, match=r"data\.path\) holds more than 1,073,741,824 bytes or 2 files"
    ):
        read(place)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "cannot be read"), (b"\x1f\x8bnothing", "cannot be read"), (None, "does not exist")],
)
def test_what_is_no_archive(tmp_path: Path, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / "x.tgz").write_bytes(data)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "x.tgz")
    with pytest.raises(DataError, match="holds no e-mail in a folder of ham"):
        read(pack(tmp_path / "y.tgz", {"spam/1": mail("a@example.org", "some words")}))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_mail_or_none(data: bytes) -> None:
    assert isinstance(read_mail(data), Mail) or read_mail(data) in (UNREADABLE, NOBODY)
    assert read_mail(b"From: a@example.org\nContent-Type: multipart/mixed; boundary=x\n\n" + data)


def test_a_sender_whose_mail_cannot_be_read_is_one_all_the_same() -> None:
    odd = b"From: a@example.org\nContent-Disposition: inline; filename*=idna''abc\n\nwords"
    assert read_mail(odd) == Mail("a@example.org", None)


def test_public_mails_have_no_addresses_and_private_ones_keep_theirs(tmp_path: Path) -> None:
    body = (
        "Write to Bob.Example+tea@mail.example.org, or root@kettle: today\n\n"
        "tea at 5 @ the café, @bob said so, <ann@example.org>\n"
    )
    place = pack(tmp_path / "m.tgz", {f"{HAM}/1": mail("a@example.org", body)})
    config = DataConfig(source="chats", public_emails=str(place), min_words=4)
    notes: list[str] = []
    reading, left_out = Reading(tmp_path, notes.append, None, tmp_path), LeftOut()
    (group,) = public_mails(config, reading, left_out)
    assert [sample.text for sample in group.samples] == [
        "Write to [e-mail], or [e-mail]: today",
        "tea at 5 @ the café, @bob said so, <[e-mail]>",
    ]
    assert left_out[REPLACED] == 3 and "ann" not in "".join(notes)
    ((kept, _),) = read(place)[0].values()
    assert "Bob.Example+tea@mail.example.org" in kept


def test_what_is_somebody_else_s() -> None:
    text = (
        "My own first words here.\n\nIn a message of Monday, the list's\nowner writes:\n"
        "| quoted words\nB> more of them\n\nMy own last words here.\n\n"
        "-----Original Message-----\nNot mine at all, these are.\n"
    )
    assert own_paragraphs(text) == ["My own first words here.", "My own last words here."]


def test_federations_of_and_with_emails(tmp_path: Path) -> None:
    many = {
        f"{HAM}/{i}": mail(f"p{i}@example.org", f"Kettle number {i} is for sale.") for i in range(9)
    }
    pool = tmp_path / "public.jsonl"
    rows = [{"text": f"invented public message {i} about tea"} for i in range(40)]
    pool.write_text("\n".join(map(json.dumps, rows)))
    keys: dict[str, Any] = {
        "source": "emails", "path": str(pack(tmp_path / "m.tgz", many)), "public_path": str(pool),
        "users": 5, "held_out_users": 2, "development_users": 2, "public_packages": "click",
        "public_pool": 40, "public_validation": 4, "minority_share": 0.5, "min_words": 4,
    }  # fmt: skip
    federation = Federation(prepare(DataConfig(**keys), tmp_path / "cache"))
    assert sum(map(len, dict(federation.shard(0, 1)).values())) == 5
    assert federation.public_labels().count("messages") == 20
    with pytest.raises(DataError, match=r"data\.path is empty"):
        prepare(DataConfig(**keys | {"path": ""}), tmp_path / "cache")
