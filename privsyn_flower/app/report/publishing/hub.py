"""A published folder to the hub, by the hub's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privsyn_flower import __version__
from privsyn_flower.app.report.publishing.product import Kind, PublishError

REPOSITORIES: dict[Kind, str] = {"text": "dataset", "model": "model"}


def check_name(name: str) -> None:
    """Raises PublishError unless the hub takes OWNER/NAME as a repository's name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise PublishError(f"--push {name}: {' '.join(str(error).split())}") from None
    if name.count("/") != 1:
        raise PublishError(f"--push {name}: name its owner, too, as in OWNER/NAME")


def push(folder: Path, name: str, kind: Kind, *, public: bool = False) -> str:
    """Upload a folder to the repository OWNER/NAME, and return its address.

    A repository that is not there is made: private, or with `public` for everyone. Raises
    PublishError for one that is public already and not asked for, and with the client's reason.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="privsyn-flower", library_version=__version__)
    own = {"repo_id": name, "repo_type": REPOSITORIES[kind]}
    try:
        return _push(api, folder, own, public)
    except PublishError:
        raise
    except Exception as error:  # the client's, its HTTP library's, the network's: many kinds
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise PublishError(f"{folder} is written, but {name} was not pushed: {why}") from error


def _push(api: Any, folder: Path, own: dict[str, str], public: bool) -> str:
    if not api.repo_exists(**own):
        api.create_repo(**own, private=not public)
    elif not public and not api.repo_info(**own).private:
        raise PublishError(
            f"{folder} is written, but not pushed: {own['repo_id']} is public already; say "
            "--public if it is meant for everyone"
        )
    said = "Written by privsyn publish"
    # What an earlier push left belongs to another card; the client keeps what is uploaded again.
    api.upload_folder(**own, folder_path=folder, commit_message=said, delete_patterns="*")
    place = "datasets/" if own["repo_type"] == "dataset" else ""
    return f"{api.endpoint}/{place}{own['repo_id']}"
