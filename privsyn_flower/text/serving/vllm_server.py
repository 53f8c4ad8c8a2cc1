"""A vLLM server of the run's own: started, watched, restarted once, ended with the run.

vLLM and Flower need different versions of the same packages, so vLLM lives in an environment of
its own (`make vllm`) and is spoken to over loopback. One engine serves the whole run: adapters
come and go over its API, and it sleeps while the GPU is needed for training.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privsyn_flower.text.models.adapters import Base, base_of, check_adapter
from privsyn_flower.text.models.pretrained import ModelUnavailableError, local_folder
from privsyn_flower.text.serving import supervisor
from privsyn_flower.text.serving.http_client import ServerError
from privsyn_flower.text.serving.http_generator import OpenAIGenerator

logger = logging.getLogger("privsyn_flower")

SERVED = "base"  # the model's name in requests
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what --max-lora-rank takes
ENVIRONMENT = Path(".venv-vllm/bin/python")  # what `make vllm` makes
SERVED_FILES = Path(__file__).with_name("served")  # all of ours that vLLM's interpreter sees
RESTARTS = 1  # of a server that died, in one run
TAIL = 8  # lines of the server's log in an error
CAUSE = re.compile(r"(^|[\s\]])[\w.]*(Error|Exception): ")
PROBE = """
import importlib.util, json
found = importlib.util.find_spec("vllm") is not None
import torch
cuda = torch.cuda.is_available()
print(json.dumps({"vllm": found, "cuda": cuda, "gpus": torch.cuda.device_count() if cuda else 0}))
"""


class VllmServer:
    """One vLLM process on a free port of loopback; nothing is started before `start`.

    Args:
        model: folder or hub name of the base model.
        log: file that gets what the server writes.
        python: interpreter of vLLM's environment; None: .venv-vllm/bin/python in the current
            folder, or beside the environment that this process runs in.
        lora_rank: largest rank of an adapter.
        seed: of the server; requests carry their own.
        arguments: more arguments of the server, as on a command line; they win over ours.
        start_timeout: seconds until it must answer.
        gpus: the places of its GPUs among those that are visible; the model is split over them.
            None: vLLM takes the first.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        log: Path,
        python: Path | None = None,
        lora_rank: int = 16,
        seed: int = 0,
        arguments: str | Sequence[str] = "",
        start_timeout: float = 900.0,
        gpus: range | None = None,
    ) -> None:
        self.gpus = gpus
        self.model = str(local_folder(model, "models.generator") or model)
        # Not resolved: a virtual environment's python is a link to another one.
        self.python = (python or default_python()).expanduser().absolute()
        self.log, self.seed, self.start_timeout = log.absolute(), seed, start_timeout
        self.lora_rank = max_lora_rank(lora_rank)
        self.arguments = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
        self.api_key = secrets.token_hex(16)
        self.port, self.starts = 0, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._start_of_log = 0
        self._lock = threading.Lock()
        if not self.python.is_file():
            raise ModelUnavailableError(
                f"generation.vllm-python = {self.python}: no such interpreter. `make vllm` makes "
                f"vLLM's environment; or set generation.base-url to a running server"
            )

    @property
    def base_url(self) -> str:
        """Where it listens; valid after `start`, and another one after a restart."""
        return f"http://127.0.0.1:{self.port}/v1"

    def base(self) -> Base:
        """The model, as adapters name the one they belong to."""
        return base_of(self.model, None, "models.generator")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> bool:
        """Start the server, or start it again once if it died; True if something was started.

        Raises ServerError when it does not come up, or dies again.
        """
        with self._lock:
            if self.alive():
                return False
            if self.starts > RESTARTS:
                raise ServerError(f"the vLLM server died again: {self._reason()}")
            if self.starts:
                logger.warning(
                    "the vLLM server died and is started again, once: %s", self._reason()
                )
            self.close()  # what a dead server may have left of its group
            self.starts += 1
            self._start()
            return True

    def close(self) -> None:
        """End the server and all its processes."""
        process, self._process = self._process, None
        if process is not None:
            supervisor.end_group(process)

    def environment(self) -> dict[str, str]:
        """Ours without what would lead vLLM's interpreter to our packages, and its switches."""
        ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        kept = {key: value for key, value in os.environ.items() if key not in ours}
        return {"VLLM_CPU_KVCACHE_SPACE": "2"} | kept | {  # GiB
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # adapters over the API
            "VLLM_SERVER_DEV_MODE": "1",  # /sleep and /wake_up
            "VLLM_API_KEY": self.api_key,
            "PYTHONPATH": str(SERVED_FILES),
        }  # fmt: skip

    def _start(self) -> None:
        """Start the process and wait until it is healthy. Raises ServerError."""
        found = self._probe()
        environment = self.environment()
        if self.gpus is not None:
            environment |= gpu_environment(self.gpus, found.get("gpus", 0))
        self.port = _free_port()
        command = server_command(
            self.python, self.model, port=self.port, seed=self.seed, lora_rank=self.lora_rank,
            gpus=self.gpus, cuda=found["cuda"], arguments=self.arguments,
        )  # fmt: skip
        self.log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        logger.info("starting vLLM (log: %s)", self.log)
        with self.log.open("ab") as output:
            self._start_of_log = output.tell()
            self._process = supervisor.start(command, environment, output)
        while not self._healthy():
            if not self.alive():
                self.close()
                raise ServerError(f"the vLLM server did not start: {self._reason()}")
            if time.monotonic() - began > self.start_timeout:
                self.close()
                raise ServerError(
                    f"the vLLM server was not ready within generation.start-timeout = "
                    f"{self.start_timeout:g} s: {self._reason()}"
                )
            time.sleep(0.25)
        logger.info("vLLM is ready after %.0f s", time.monotonic() - began)

    def _probe(self) -> dict[str, Any]:
        """What vLLM's environment has: {"vllm": bool, "cuda": bool}."""
        answer = subprocess.run(
            [str(self.python), "-c", PROBE],
            env=self.environment(), capture_output=True, text=True, timeout=self.start_timeout,
        )  # fmt: skip
        try:
            found: dict[str, Any] = json.loads(answer.stdout.strip().rpartition("\n")[2])
        except ValueError:
            found = {"vllm": False}
        if not found["vllm"]:
            why = answer.stderr.strip().rpartition("\n")[2] or "it has no package vllm"
            raise ModelUnavailableError(
                f"generation.vllm-python = {self.python}: {why}. `make vllm` makes an environment "
                f"with vLLM"
            )
        return found

    def _healthy(self) -> bool:
        # No proxy: the address is this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.base_url.removesuffix("/v1") + "/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _reason(self) -> str:
        """What the server's log says since its last start: the first errors, else its end."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._start_of_log)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        lines = [line.rstrip() for line in lines if line.strip()]
        # The cause comes first; what follows tells that other processes lost this one.
        errors = list(dict.fromkeys(line for line in lines if CAUSE.search(line)))
        return "\n".join([f"see {self.log}", *(errors[:TAIL] or lines[-TAIL:])])


class VllmGenerator(OpenAIGenerator):
    """Completions by a vLLM server that this object starts at its first use, and ends.

    Args:
        server: not started yet, or started.
        options: as for `OpenAIGenerator`, without address, key and adapters.
    """

    def __init__(self, server: VllmServer, **options: Any) -> None:
        self.server = server
        super().__init__(server.base_url, SERVED, api_key=server.api_key, adapters=True, **options)
        self._reviving = threading.RLock()  # loading an adapter may find the server dead

    def use_adapter(self, folder: Path | None) -> None:
        """As `OpenAIGenerator`; AdapterError for a folder that is missing or of another base."""
        if folder is not None:
            check_adapter(folder, self.server.base())
        super().use_adapter(folder)

    def rest(self) -> None:
        """Send the server to sleep, if it was started."""
        if self.server.alive():
            super().rest()

    def close(self) -> None:
        """End the server."""
        self._slot.current = None  # nothing to unload: the server goes
        super().close()
        self.server.close()

    def ready(self) -> None:
        """Before requests: start the server, or wake it, with the adapter it had."""
        self._revive()
        super().ready()

    def _lost(self, problem: ServerError) -> None:
        if not self._revive():
            super()._lost(problem)

    def _revive(self) -> bool:
        """Start the server if it is not there, with the adapter in use; whether it was not.

        Raises ServerError.
        """
        with self._reviving:
            if not self.server.ensure():
                return False
            self.client.base_url = self.server.base_url
            self._asleep = False
            self._slot.put_back()
            return True


def server_command(
    python: Path,
    model: str,
    *,
    port: int | str,
    seed: int,
    lora_rank: int,
    gpus: range | None,
    cuda: bool,
    arguments: Sequence[str],
) -> list[str]:
    """The command line of a vLLM server.

    `vllm serve` would be shorter, but refuses to start where the distribution is a CPU build.
    """
    gpu = ["--dtype", "auto", "--enable-sleep-mode"]
    # Not in parts on a CPU: a prompt with a seed whose reading is split over two steps needs
    # the offset of its generator, which torch's generators on a CPU do not have (vLLM 0.32).
    cpu = ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"]
    if gpus is not None and len(gpus) > 1:
        gpu += ["--tensor-parallel-size", str(len(gpus))]
    return [
        str(python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", model, "--served-model-name", SERVED,
        "--host", "127.0.0.1", "--port", str(port), "--seed", str(seed),
        "--enable-lora", "--max-lora-rank", str(lora_rank), "--max-loras", "1",
        "--enable-prefix-caching",
        # Sampling is what the requests say, not what the model's folder suggests.
        "--generation-config", "vllm",
        "--disable-uvicorn-access-log",
        # Its own check of the key leaves out what is not below /v1, such as /sleep.
        "--middleware", "privsyn_require_key.RequireKey",
        *(gpu if cuda else cpu),
        *arguments,
    ]  # fmt: skip


def gpu_environment(gpus: range, seen: int) -> dict[str, str]:
    """The environment of a server that has these of `seen` GPUs to itself; none on a CPU.

    gpus: places among those that are visible to this process. Raises ServerError when there are
    fewer, or, for a model that is to be split, none.
    """
    if seen < gpus.stop and (seen or len(gpus) > 1):
        raise ServerError(
            f"generation.vllm-replicas and vllm-tensor-parallel ask for {gpus.stop} GPUs or more, "
            f"and vLLM's interpreter sees {seen}: lower one of them"
        )
    if not seen:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    names = names or [str(place) for place in range(seen)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[place] for place in gpus)}


def max_lora_rank(rank: int) -> int:
    """The smallest --max-lora-rank that fits adapters of `rank`."""
    if not 1 <= rank <= RANKS[-1]:
        raise ValueError(f"popri.lora-rank = {rank}: vLLM takes 1 to {RANKS[-1]}")
    return next(allowed for allowed in RANKS if allowed >= rank)


def default_python() -> Path:
    """The interpreter that `make vllm` makes: in this folder, or beside our own environment."""
    places = [Path.cwd() / ENVIRONMENT, Path(sys.prefix).parent / ENVIRONMENT]
    return next((place for place in places if place.is_file()), places[0])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
