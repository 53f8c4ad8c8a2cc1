"""LoRA adapters on a vLLM server, loaded and unloaded over its API while it runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from privsyn_flower.text.models.adapters import CONFIG, WEIGHTS, AdapterError
from privsyn_flower.text.serving.http_client import ABSENT, JsonClient, ServerError


class AdapterSlot:
    """The one adapter that a generator has on its server; None: the base model."""

    def __init__(self, client: JsonClient) -> None:
        self.client = client
        self.current: tuple[Path, str] | None = None  # folder, and its name on the server

    def name(self) -> str | None:
        """Under which the server knows the adapter in use."""
        return self.current[1] if self.current else None

    def put(self, wanted: tuple[Path, str] | None) -> None:
        """Take what is there off the server and put `wanted` there; after an error, nothing is."""
        self.take_off()
        if wanted is not None:
            self._load(*wanted)
            self.current = wanted

    def take_off(self) -> None:
        """Back to the base model."""
        previous, self.current = self.current, None
        if previous is not None:
            try:
                body = {"lora_name": previous[1]}
                self.client.post("/unload_lora_adapter", body, patient=False)
            except ServerError as error:
                if error.status not in ABSENT:  # it is gone already: the server was restarted
                    raise

    def put_back(self) -> None:
        """Load the adapter in use afresh, where the server may have lost it."""
        wanted = self.current
        try:
            self.put(wanted)
        except Exception:
            self.current = wanted  # requests then fail for it, instead of going to the base model
            raise

    def _load(self, folder: Path, name: str) -> None:
        body = {"lora_name": name, "lora_path": str(folder.absolute())}
        try:
            self.client.post("/load_lora_adapter", body, patient=False)
        except ServerError as error:
            if error.status == 400 and "already" in str(error):
                return  # the name is the content's, so what is there is the same
            if not error.status:
                raise
            raise ServerError(
                f"adapter {folder} cannot be loaded: {error}. A vLLM server needs --enable-lora, "
                f"--max-lora-rank of at least popri.lora-rank, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 "
                f"and a file system where it finds that folder; or leave generation.base-url empty",
                error.status,
            ) from error


def adapter_name(folder: Path) -> str:
    """A name made of the adapter's content, because servers keep caches by name."""
    digest = hashlib.sha256()
    for file in (CONFIG, WEIGHTS):
        path = folder / file
        if not path.is_file():
            raise AdapterError(f"{folder} is no adapter: {file} is missing")
        data = path.read_bytes()
        digest.update(f"{file} {len(data)} ".encode() + data)
    return f"privsyn-{digest.hexdigest()[:16]}"
