"""The simulated federation: disjoint sides, declared sizes, determinism, one builder at a time."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import stat
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.config import DataConfig
from privsyn_flower.data import DataError, Federation, load_users, prepare, shard_sizes
from privsyn_flower.data.docstrings import scan_packages
from privsyn_flower.data.groups import DATA, REST
from privsyn_flower.data.hub import hub_columns, hub_rows, load_hub
from privsyn_flower.data.partition import NEAR
from privsyn_flower.data.text_files import check_public, public_groups
from tests.rigs.users import write, write_jsonl

DOCSTRINGS = {
    "private_packages": "networkx",
    "public_packages": "pydantic,click",
    "minority_packages": "numpy",
    "minority_share": 0.25,
    "users": 60,
    "samples_per_user": 4,
    "min_samples_per_user": 2,
    "near_duplicates": "remove",
    "sections_per_module": 2,
    "held_out_users": 12,
    "development_users": 8,
    "public_pool": 200,
    "public_validation": 40,
    "sample_words": 24,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def config() -> DataConfig:
    return DataConfig(**DOCSTRINGS)


@pytest.fixture(scope="module")
def federation(cache: Path, config: DataConfig) -> Federation:
    return Federation(prepare(config, cache))


def sides(federation: Federation) -> dict[str, list[str]]:
    def flat(users: dict[str, list[str]]) -> list[str]:
        return [text for texts in users.values() for text in texts]

    return {
        "private": flat(federation.shard(0, 1)),
        "test": flat(federation.held_out("test")),
        "development": flat(federation.held_out("development")),
        "corpus": federation.public_corpus(),
        "validation": federation.public_validation(),
    }


def naive_grams(texts: list[str]) -> set[tuple[str, ...]]:
    """13-grams by another route than the package's."""
    every = [tuple(re.findall(r"[^\W_]+", text.lower())) for text in texts]
    return {own[i : i + 13] for own in every for i in range(max(1, len(own) - 12))}


def test_no_near_duplicate_between_or_within_sides(federation: Federation) -> None:
    texts = sides(federation)
    assert all(texts.values())
    names = list(texts)
    for i, one in enumerate(names):
        assert len(set(texts[one])) == len(texts[one])
        for other in names[i + 1 :]:
            assert not naive_grams(texts[one]) & naive_grams(texts[other]), (one, other)


def test_the_check_above_can_fail(cache: Path, federation: Federation) -> None:
    modules = scan_packages(["networkx", "numpy"], cache)
    raw = {
        p: [d for m in modules if m.package == p for d in m.docstrings]
        for p in ("networkx", "numpy")
    }
    whole = sides(federation)["private"]
    assert naive_grams(whole) & naive_grams(raw["networkx"])


def test_no_module_is_on_two_sides(federation: Federation) -> None:
    private = {user.split("#")[0] for user in federation.shard(0, 1)}
    test = set(federation.held_out("test"))
    development = set(federation.held_out("development"))
    assert not private & test
    assert not private & development
    assert not test & development
    assert all(name.startswith("networkx") for name in private | test | development)


def test_declared_sizes_and_caps(federation: Federation) -> None:
    users = federation.shard(0, 1)
    assert len(users) == federation.users == 60
    assert len(federation.held_out("test")) == 12
    assert len(federation.held_out("development")) == 8
    for own in (*users.values(), *federation.held_out("test").values()):
        assert 2 <= len(own) <= 4
        assert all(6 <= len(text.split()) <= 24 for text in own)
    assert any("#1" in user for user in users)
    labels = {s.label for own in federation.shard_samples(0, 1).values() for s in own}
    assert labels == {"networkx"}


def test_public_texts_and_their_minority(federation: Federation) -> None:
    corpus, general = federation.public_corpus(), set(federation.public_general())
    pool, validation = federation.public(), federation.public_validation()
    assert len(set(pool)) == 200
    assert set(pool) <= set(corpus)
    assert sum(text not in general for text in pool) == 50  # a quarter of them
    assert len(corpus) > 200
    assert len(validation) == 40
    assert [text for group in federation.public_groups() for text in group] == corpus
    assert len(federation.public_groups()) < len(corpus)
    order = {text: i for i, text in enumerate(corpus)}
    assert [order[text] for text in pool] != sorted(order[text] for text in pool)


def test_shards_are_contiguous_and_whole(federation: Federation) -> None:
    whole = list(federation.shard(0, 1).items())
    parts = [federation.shard(i, 7) for i in range(7)]
    assert [item for part in parts for item in part.items()] == whole
    assert [len(part) for part in parts] == shard_sizes(60, 7) == [9, 9, 9, 9, 8, 8, 8]


@pytest.mark.parametrize("partitions", [0, 61, -1])
def test_impossible_partitions(federation: Federation, partitions: int) -> None:
    with pytest.raises(DataError, match=rf"{partitions} .*1\.\.60"):
        federation.shard(0, partitions)


def test_wrong_partition_side_and_folder(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"partition-id = 3 must be in 0\.\.2"):
        federation.shard(3, 3)
    with pytest.raises(DataError, match="'train'"):
        federation.held_out("train")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="prepare"):
        Federation(tmp_path)


@pytest.mark.parametrize("name", ["meta.json", "private.arrow", "public.arrow"])
@pytest.mark.parametrize("left", [0, 7, 200])
def test_a_damaged_folder_is_named_with_the_way_out(tmp_path: Path, name: str, left: int) -> None:
    config = files_config(write_users(tmp_path / "users.jsonl", 30))
    folder = prepare(config, tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:left])
    with pytest.raises(DataError, match=rf"{name} is damaged.*delete the folder {folder}"):
        prepare(config, tmp_path)
    if name != "public.arrow":
        with pytest.raises(DataError, match="delete the folder"):
            Federation(folder).shard(0, 1)
    shutil.rmtree(folder)
    assert len(Federation(prepare(config, tmp_path)).shard(0, 1)) == 20


def test_a_lost_table_is_damage_too(tmp_path: Path) -> None:
    config = files_config(write_users(tmp_path / "users.jsonl", 30))
    (prepare(config, tmp_path) / "test.arrow").unlink()
    with pytest.raises(DataError, match=r"test\.arrow is damaged or incomplete \(FileNotFound"):
        prepare(config, tmp_path)


@pytest.mark.parametrize("content", ["", '{"user_id": "p", "text": " "}\n', "\n\n"])
def test_a_public_file_without_text(tmp_path: Path, content: str) -> None:
    public = tmp_path / "open.jsonl"
    public.write_text(content)
    config = files_config(write_users(tmp_path / "users.jsonl", 30), public_path=str(public))
    with pytest.raises(DataError, match=rf"{public} \(data\.public-path\)"):
        prepare(config, tmp_path)


def test_the_folder_is_for_its_owner(federation: Federation) -> None:
    assert stat.S_IMODE(federation.folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_the_same_everywhere_whatever_hash_seed_or_processes(
    cache: Path, federation: Federation, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from privsyn_flower.config import DataConfig;"
        "from privsyn_flower.data import docstrings, prepare; docstrings.BATCH = 90;"
        "docstrings.available_cores = lambda: 3;"
        "print(prepare(DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])))"
    )
    config = DataConfig(**DOCSTRINGS).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", code, config, str(tmp_path)],
        env={"PYTHONHASHSEED": "7", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    other = Path(done.stdout.strip())
    assert other.name == federation.folder.name
    files = sorted(path.name for path in federation.folder.iterdir())
    assert files == sorted(path.name for path in other.iterdir())
    assert all((other / f).read_bytes() == (federation.folder / f).read_bytes() for f in files)


def test_another_seed_another_split_and_folder(cache: Path, federation: Federation) -> None:
    other = Federation(prepare(DataConfig(**{**DOCSTRINGS, "seed": 1}), cache))
    assert other.folder != federation.folder
    assert set(other.held_out("test")) != set(federation.held_out("test"))
    assert other.public() != federation.public()


def test_uniform_partition_deals_samples_at_random(cache: Path) -> None:
    federation = Federation(prepare(DataConfig(**{**DOCSTRINGS, "partition": "uniform"}), cache))
    users = federation.shard(0, 1)
    assert {len(own) for own in (*users.values(), *federation.held_out("test").values())} == {4}
    assert len(users) == 60
    assert next(iter(users)) == "user-000000"
    texts = sides(federation)
    assert not naive_grams(texts["private"]) & naive_grams(texts["test"])


@pytest.mark.slow
def test_several_processes_build_once(tmp_path: Path) -> None:
    private = write_users(tmp_path / "users.jsonl", 30)
    code = (
        "import sys; from pathlib import Path; from privsyn_flower.config import DataConfig;"
        "from privsyn_flower.data import prepare;"
        "print(prepare(DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), print))"
    )
    config = files_config(private).model_dump_json()
    command = [sys.executable, "-c", code, config, str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].strip().splitlines() for process in running]
    assert [process.returncode for process in running] == [0] * 3
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum(len(lines) > 1 for lines in outputs) == 1  # one read the source
    left = [p.name for p in (tmp_path / "cache" / "data").iterdir() if not p.name.endswith(".lock")]
    assert left == [Path(outputs[0][-1]).name]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    config = files_config(write_users(tmp_path / "users.jsonl", 8))
    with pytest.raises(DataError, match=r"data\.users = 20.*only 1 such"):
        prepare(config, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache" / "data").iterdir() if p.is_dir()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": 5000}, ["data.users = 5000", "sections-per-module"]),
        ({"held_out_users": 5000}, ["data.held-out-users = 5000"]),
        ({"public_pool": 10**6}, ["data.public-pool", "general", "data.public-packages"]),
        ({"minority_share": 1.0, "public_pool": 10**5}, ["minority-packages", "100000"]),
        ({"minority_packages": ""}, ["minority-share = 0.25"]),
        ({"minority_packages": "Pydantic"}, ["'Pydantic'", "data.public-packages"]),
        ({"private_packages": ""}, ["data.private-packages is empty"]),
        ({"min_samples_per_user": 5}, ["= 5 exceeds data.samples-per-user = 4"]),
        ({"source": "web"}, ["'web'", "hub:NAME"]),
        ({"source": "files"}, ["data.path is empty"]),
        ({"source": "files", "path": "/none.jsonl"}, ["/none.jsonl"]),
        ({"partition": "uniform", "users": 50_000}, ["data.users = 50000"]),
    ],
)
def test_errors_name_value_bound_and_key(cache: Path, change: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        prepare(DataConfig(**{**DOCSTRINGS, **change}), cache)
    assert [word for word in words if word not in str(caught.value)] == []


def write_users(path: Path, count: int, name: str = "user_id") -> Path:
    rows = [
        {
            name: f"u{i}",
            "text": f"{path.stem} sample {k} of person {i} on day {k * 7 + i}",
            "day": 86_400 * (10_000 + i),
        }
        for i in range(count)
        for k in range(3)
    ]
    return write_jsonl(path, [*rows, {name: "silent", "text": "", "day": 864_000_000}])


def files_config(private: Path, **more: Any) -> DataConfig:
    options = {"source": "files", "path": str(private), "users": 20, "samples_per_user": 2}
    options |= {"held_out_users": 5, "development_users": 3}
    return DataConfig(**{**options, **more})


def test_files_keep_users_and_follow_the_bytes(tmp_path: Path) -> None:
    private = write_users(tmp_path / "private.jsonl", 30)
    public = write_users(tmp_path / "open.jsonl", 40)
    config = files_config(private, public_path=str(public), public_pool=50, public_validation=10)
    federation = Federation(prepare(config, tmp_path))
    users = dict(federation.shard(0, 1))
    everyone = {*users, *federation.held_out("test"), *federation.held_out("development")}
    assert len(everyone) == 28
    assert users.pop("silent", []) == []  # a member all the same, if it is one
    assert all(len(own) == 2 and "private" in own[0] for own in users.values())
    assert len(federation.public()) == 50
    assert federation.public_general() == federation.public_corpus()
    assert {len(group) for group in federation.public_groups()} == {3}  # the public authors
    private.write_text(private.read_text().replace("sample", "letter"))
    assert prepare(config, tmp_path) != federation.folder


def test_held_out_users_have_a_cap_of_their_own(tmp_path: Path) -> None:
    """PrE-Text's CODE: 16 samples of a private user, 128 of a test user."""
    private = write_users(tmp_path / "private.jsonl", 30)
    config = files_config(private, samples_per_user=1, held_out_samples=2)
    federation = Federation(prepare(config, tmp_path))
    for side in ("test", "development"):
        assert {len(own) for own in federation.held_out(side).values()} == {2}
    assert {len(own) for own in dict(federation.shard(0, 1)).values()} <= {0, 1}
    uniform = files_config(private, partition="uniform", users=4, held_out_samples=3)
    with pytest.raises(DataError, match=r"data\.held-out-samples = 3 .*samples-per-user = 2"):
        prepare(uniform, tmp_path)


def test_skipped_rows_are_told_apart_from_progress(tmp_path: Path) -> None:
    """Progress is kept in a run folder: counts of private rows never go there."""
    private = write_users(tmp_path / "private.jsonl", 30)
    public = write_users(tmp_path / "open.jsonl", 40)
    with private.open("a") as handle:
        handle.write('{"user_id": "u1", "text": ""}\nno json\n')
    config = files_config(private, public_path=str(public), public_pool=50, public_validation=10)
    notes: list[str] = []
    told: list[str] = []
    folder = prepare(config, tmp_path, notes.append, told.append)
    assert told == [
        "private.jsonl: skipped 3 of 93 rows: 2 x the text is empty (lines 91, 92); "
        "1 x the line is no JSON object (line 93)",
        "private.jsonl: left out: 27 x beyond data.samples-per-user",
        "private.jsonl: 3 users are not among the 28",
        "private.jsonl: 1 of 20 users have no sample",
    ]
    assert not any("private.jsonl:" in note for note in notes)
    assert "open.jsonl: skipped 1 of 121 rows: 1 x the text is empty (line 121)" in notes
    assert prepare(config, tmp_path, None, told.append) == folder
    assert told[:4] == told[4:]


def test_a_short_text_is_no_rest_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Samples of 8 units, in scripts with and without spaces; a rest has fewer than 2."""
    texts = [
        ["no rest"],
        ["hi", "hi!", "😀😀"],  # a near duplicate, and one of emoji
        ["今天天气很好，我们去公园散步吧。明天下雨，我们看书。"],
        ["a b c d e f g h i"],  # a rest of one
        ["QmFzZTY0IGlzIG5vIHRleHQ= IG5laXRoZXIgaXMgdGhpcw=="],  # base64
    ]
    rows = [{"user_id": f"u{i}", "text": t} for i, own in enumerate(texts) for t in own]
    path, public = write(tmp_path, "jsonl", rows), write_users(tmp_path / "open.jsonl", 40)
    with public.open("a") as handle:
        handle.write(json.dumps({"user_id": "u1", "text": "a b c d e f g h i"}) + "\n")
    config = files_config(
        path, users=5, held_out_users=0, development_users=0, chunk=True, sample_words=8,
        public_path=str(public), public_pool=50, public_validation=10,
    )  # fmt: skip
    told: list[str] = []
    notes: list[str] = []
    folder = prepare(config, tmp_path, notes.append, told.append)
    own = Federation(folder).shard(0, 1)
    assert {user: own[user] for user in sorted(own)} == {
        "u0": ["no rest"],
        "u1": ["hi", "😀😀"],
        "u2": ["今天天气很好，我们去公园散步吧。", "明天下雨，我们看书。"],
        "u3": ["a b c d e f g h"],
        "u4": [],
    }
    assert told == [
        f"users.jsonl: left out: 1 x {NEAR}; 1 x {DATA}; 1 x {REST}",
        "users.jsonl: 1 of 5 users have no sample",
    ]
    assert not any("users.jsonl:" in note for note in notes)
    assert Federation(folder).meta["public"]["left_out"] == {REST: 121, NEAR: 0}  # 9 words each


def test_public_text_without_users_is_grouped_in_rows(tmp_path: Path) -> None:
    private = write_users(tmp_path / "private.jsonl", 30)
    public = write_users(tmp_path / "open.jsonl", 40, name="ignored")
    config = files_config(private, public_path=str(public), public_pool=50, public_validation=16)
    groups = Federation(prepare(config, tmp_path)).public_groups()
    assert {len(group) for group in groups} == {8}


def test_no_public_text_is_an_empty_pool(tmp_path: Path) -> None:
    federation = Federation(prepare(files_config(write_users(tmp_path / "p.jsonl", 30)), tmp_path))
    assert federation.public() == federation.public_groups() == federation.public_validation() == []


def test_private_text_wins_over_the_same_public_text(tmp_path: Path) -> None:
    private = write_users(tmp_path / "same.jsonl", 30)
    public = tmp_path / "public.jsonl"
    public.write_text(private.read_text() + '{"user_id": "p", "text": "only here in the open"}\n')
    config = files_config(
        private, public_path=str(public), public_pool=1, public_validation=0, samples_per_user=3,
        near_duplicates="remove",
    )  # fmt: skip
    federation = Federation(prepare(config, tmp_path))
    texts = sides(federation)
    assert "only here in the open" in texts["corpus"]
    held = {*texts["private"], *texts["test"], *texts["development"]}
    assert not held & set(texts["corpus"])


def test_the_folder_of_a_corpus_is_public_text_by_its_mix(tmp_path: Path) -> None:
    """`data.public-path` takes the folder of `privsyn public`, in simulation and in deployment."""
    private = write_users(tmp_path / "private.jsonl", 30)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    said = [f"hello number {i} and {i * i} more" for i in range(90)]
    write_jsonl(corpus / "mix.jsonl", [{"text": text, "stage": "chat"} for text in said])
    (corpus / "chat.jsonl").write_text('{"text": "Me: a whole conversation", "stage": "chat"}\n')
    config = files_config(private, public_path=str(corpus), public_pool=50, public_validation=10)
    folder = prepare(config, tmp_path)
    assert set(Federation(folder).public()) <= set(said)
    groups = public_groups(DataConfig(source="files", public_path=str(corpus)))
    assert [sample.text for group in groups for sample in group.samples] == said
    more = json.dumps({"text": "one more turn of a chat", "stage": "chat"})
    (corpus / "mix.jsonl").write_text((corpus / "mix.jsonl").read_text() + more + "\n")
    assert prepare(config, tmp_path) != folder  # another mix is another federation
    (corpus / "mix.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"corpus \(data\.public-path\) is a folder without .* `privsyn public mix`"
    ):
        prepare(config, tmp_path)
    with pytest.raises(DataError, match="`privsyn public mix`"):  # a deployed server
        public_groups(DataConfig(source="files", public_path=str(corpus)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For the files of a data set that is laid out as one of the hub's."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


def test_hub_data_set_from_a_local_folder(tmp_path: Path, folder: Path) -> None:
    write_users(folder / "train.jsonl", 40)
    window = {"date_column": "day", "date_from": "1970-01-01"}
    config = files_config(Path(), source=f"hub:{folder}", path="", **window)
    users = Federation(prepare(config, tmp_path)).shard(0, 1)
    assert len(users) == 20
    assert all(re.fullmatch(r"u\d+|silent", user) for user in users)
    with pytest.raises(DataError, match=r"'author' \(data.user-column\).*'day', 'text', 'user_id'"):
        prepare(config.model_copy(update={"user_column": "author"}), tmp_path)
    with pytest.raises(DataError, match="cannot be loaded"):
        prepare(config.model_copy(update={"source": f"hub:{folder}#validation"}), tmp_path)


@pytest.mark.parametrize("part", ["", "#train:30"])
def test_an_error_of_the_hub_quotes_no_text(tmp_path: Path, folder: Path, part: str) -> None:
    """Errors end in a run folder; the library's name the value that they could not convert."""
    lines = [json.dumps({"user_id": i, "text": "plain"}) for i in range(40)]
    lines[20] = '{"user_id": "secret words", "text": {"deep secret": [1, '
    (folder / "train.json").write_text("\n".join(lines))  # .jsonl is read by our own reader
    config = files_config(Path(), source=f"hub:{folder}{part}", path="")
    with pytest.raises(DataError, match=r"cannot be (loaded|read): .*text in all") as caught:
        prepare(config, tmp_path / "cache")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


ODD = "user_id,text\n000,null\n001,NA\n0,None\n1,nan\n00,x y\n"


@pytest.mark.parametrize("name", ["train.csv", "train.csv.gz"])
def test_a_csv_means_the_same_to_both_readers(folder: Path, name: str) -> None:
    """In a local folder by our own reader; what that does not know by the hub's library."""
    own = folder / "train.csv"
    own.write_text(ODD)
    found = load_users(own)
    told = {"000": "null", "001": "NA", "0": "None", "1": "nan", "00": "x y"}
    assert found == {user: [text] for user, text in told.items()}
    if name != own.name:
        (folder / name).write_bytes(gzip.compress(own.read_bytes()))
        own.unlink()
    data = load_hub(f"hub:{folder}")
    assert hub_columns(data) == ["user_id", "text"]
    rows = [row for _, row in hub_rows("here", data, ["user_id", "text"])]
    assert {row["user_id"]: [row["text"]] for row in rows} == found
    first = hub_rows("here", load_hub(f"hub:{folder}#train:2"), ["text"])
    assert [row["text"] for _, row in first] == ["null", "NA"]


@pytest.mark.parametrize(
    ("private", "public", "same"),
    [
        ("hub:a/b", "hub:a/b#train:9", True),
        ("hub:a/b#train", "hub:a/b#test", False),
        ("hub:a/b", "hub:a/c", False),
    ],
)
def test_the_users_split_is_no_public_text(private: str, public: str, same: bool) -> None:
    config = DataConfig(source=private, public_path=public)
    with pytest.raises(DataError, match="is the text of the users") if same else nullcontext():
        check_public(config)


def test_mixed_types_are_named(folder: Path) -> None:
    for name, user in (("a", 5), ("b", "secret")):
        (folder / f"{name}.json").write_text(json.dumps({"user_id": user, "text": "x"}))
    with pytest.raises(DataError, match=r"Arrow\w+: .* values of several types") as caught:
        list(hub_rows("here", load_hub(f"hub:{folder}"), ["text"]))
    assert "secret" not in str(caught.value)


def test_hub_names_splits_and_streamed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    calls: list[Any] = []

    def load(*args: Any, **options: Any) -> Any:
        calls.append((args, options))
        data = datasets.Dataset.from_list([{"text": f"text number {i}"} for i in range(20)])
        return data.to_iterable_dataset() if options["streaming"] else data

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(load_hub("hub:me/set")) == 20
    assert calls.pop() == (("me/set", None), {"split": "train", "streaming": False})
    config = DataConfig(source="files", public_path="hub:allenai/c4@en#validation:10")
    groups = public_groups(config)
    assert [len(group.samples) for group in groups] == [8, 2]
    assert calls[0] == (("allenai/c4", "en"), {"split": "validation", "streaming": True})
    with pytest.raises(DataError, match="ROWS >= 1"):
        load_hub("hub:me/set#train:none")
