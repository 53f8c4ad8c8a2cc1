"""What several tests share about vllm server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from privsyn_flower.text.models.adapters import Base

# Acts as an interpreter with vLLM: answers the probe, or serves; `moods` says how.
STAND_IN = """#!{python}
import http.server, json, os, subprocess, sys
folder = {folder!r}
def mood(name):
    return os.path.exists(os.path.join(folder, name))
if sys.argv[1] == "-c":
    if mood("broken"):
        sys.exit("ModuleNotFoundError: No module named 'torch'")
    print("a line of some library")
    print(json.dumps({{"vllm": not mood("no-vllm"), "cuda": mood("cuda")}}))
    sys.exit()
with open(os.path.join(folder, "started"), "a") as file:
    file.write(json.dumps([sys.argv, dict(os.environ)]) + "\\n")
engine = subprocess.Popen(["sleep", "100"])
with open(os.path.join(folder, "pids"), "w") as file:
    file.write(f"{{os.getpid()}} {{engine.pid}}")
print("INFO loading", flush=True)
if mood("dies"):
    print("ValueError: no kernel for this model\\nhelp: buy another", flush=True)
    sys.exit(3)
loaded = []
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{{}}")
        status, answer = 200, {{}}
        if self.path == "/health":
            status = 503 if mood("unhealthy") else 200
        elif self.headers["Authorization"] != key:
            status = 401
        elif self.path == "/v1/load_lora_adapter":
            loaded.append(body["lora_name"])
        elif self.path == "/v1/completions":
            if mood("crashes"):
                os.remove(os.path.join(folder, "crashes"))
                os._exit(1)
            if mood("always-crashes"):
                os._exit(1)
            if body["model"] not in ["base", *loaded]:
                status = 404
            answer = {{"choices": [{{"index": 0, "text": body["model"]}}]}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST
key = "Bearer " + os.environ["VLLM_API_KEY"]
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    folder.mkdir()
    python = folder / "python"
    python.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
    python.chmod(0o755)
    return python


def mood(stand_in: Path, name: str) -> None:
    (stand_in.parent / name).touch()


def started(stand_in: Path) -> list[tuple[list[str], dict[str, str]]]:
    file = stand_in.parent / "started"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def write_adapter(folder: Path, base: Base) -> Path:
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"1")
    config = {
        "peft_type": "LORA", "base_model_name_or_path": base.name, "revision": base.revision
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
