"""`[data]`: who the users are, what they hold, and what text is public."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from privsyn_flower.config.section import Section


class DataConfig(Section):
    """`[data]`: who the users are, what they hold, and what text is public."""

    source: str = Field("docstrings", description="docstrings, files, chats, emails, or hub:NAME")
    path: str = Field(
        "",
        description="files: jsonl, csv or parquet with the private users' text; emails: the folder "
        "or .tgz of SpamAssassin's corpus",
    )
    public_path: str = Field(
        "",
        description="files/hub: the public text (file, hub:NAME, or folder of `privsyn public`); "
        "chats/emails: its minority, instead of the chats that ship with the package",
    )
    public_emails: str = Field(
        "", description="chats: the folder or .tgz of SpamAssassin's corpus, more general public "
        "text; empty: none"
    )  # fmt: skip
    private_packages: str = Field(
        "scipy,scikit-learn,pandas", description="docstrings: packages whose modules are users"
    )
    public_packages: str = Field(
        "stdlib,transformers,torch,ray,sqlalchemy,sympy",
        description="docstrings/chats/emails: the general public packages",
    )
    minority_packages: str = Field(
        "numpy", description="docstrings: public packages close to the private domain"
    )
    minority_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="docstrings/chats/emails: share of the public pool that is like "
        "the private text: of the minority packages, or messages",
    )
    users: int = Field(1000, ge=1, description="declared number of private users (public)")
    samples_per_user: int = Field(8, ge=1, description="cap on one user's samples")
    min_samples_per_user: int = Field(
        1, ge=1, description="users with fewer are not enrolled; above 1 only with benchmark = true"
    )
    sections_per_module: int = Field(
        4, ge=1, description="docstrings: users made of one module, of consecutive samples each"
    )
    partition: Literal["natural", "uniform", "date"] = Field(
        "natural", description="natural: by user column; uniform: PrE-Text's random partition; "
        "date: by user column, the newest users held out (only with benchmark = true)"
    )  # fmt: skip
    near_duplicates: Literal["own", "remove", "keep"] = Field(
        "own", description="texts that share 13 words in a row: own: a user keeps the first of "
        "theirs, and so does the public text; remove: nobody shares any with anyone (only with "
        "benchmark = true); keep: all stay"
    )  # fmt: skip
    held_out_users: int = Field(150, ge=0, description="test users, read by final runs only")
    held_out_samples: int = Field(
        0, ge=0, description="most samples of a held-out user; 0: samples-per-user"
    )
    development_users: int = Field(
        100, ge=0, description="users for tuning, and for popri.checkpoint = private"
    )
    canaries: int = Field(
        0, ge=0, description="made-up users in the places of so many, half of whom "
        "by a draw take part: for `privsyn inspect`, and only with benchmark = true"
    )  # fmt: skip
    public_pool: int = Field(8192, ge=1, description="public texts kept as the pool")
    public_validation: int = Field(
        512, ge=0, description="public texts to choose a rate by, or compare with"
    )
    sample_words: int = Field(45, ge=4, description="words of a sample, candidate or response")
    min_words: int = Field(
        8,
        ge=1,
        description="chats/emails: a shorter text is joined with the same person's next ones in "
        "the same conversation or e-mail",
    )
    chunk: bool = Field(
        False, description="files/hub: cut a text into consecutive samples of sample-words words"
    )
    user_column: str = Field(
        "user_id", description="files/hub: column of the user's id; empty: every row is a user"
    )
    text_column: str = Field("text", description="files/hub: column of the text")
    public_text_column: str = Field(
        "", description="files/hub: column of the public text; empty: text-column"
    )
    label_column: str = Field("", description="files/hub: column of a label; empty: none")
    date_column: str = Field("", description="files/hub: column of a date; empty: none")
    date_from: str = Field("", description="first date kept, YYYY-MM-DD")
    date_to: str = Field("", description="last date kept, YYYY-MM-DD")
    seed: int = Field(0, ge=0, description="seed of the split")

    @property
    def has_minority(self) -> bool:
        """Whether the source has public text of its own, a part of which is like the private."""
        return self.source in ("docstrings", "chats", "emails")

    @property
    def labelled(self) -> bool:
        """Whether its texts may have labels; a docstring's is its package."""
        return self.source == "docstrings" or bool(self.label_column)

    @property
    def chosen_by_text(self) -> str:
        """The keys that make one user's text decide about another's or about the public text."""
        keys = {
            "data.near-duplicates = 'remove'": self.near_duplicates == "remove",
            "data.partition = 'date'": self.partition == "date",
            f"data.min-samples-per-user = {self.min_samples_per_user}": (
                self.min_samples_per_user > 1
            ),
        }
        return ", ".join(key for key, used in keys.items() if used)
