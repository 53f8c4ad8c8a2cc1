"""JSON over HTTP to a model server: retries, waits, and errors that name the key to change.

What travels is public (prompts of public or released text); prompts of private text, which
`expand-private` makes, go to servers of this machine alone. API keys are sent and never shown.
`AdapterSlot`: a LoRA adapter on a vLLM server, loaded and unloaded while it runs.
"""

from __future__ import annotations

import email.utils
import hashlib
import ipaddress
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from privsyn_flower.common.terminal import one_line
from privsyn_flower.text.models.adapters import CONFIG, WEIGHTS, AdapterError

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("privsyn_flower")

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
ABSENT = frozenset({404, 405, 501})  # of a call that a server does not offer
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before the second attempt, and the most
SHOWN = 300  # characters of a server's answer in an error
# Bytes that are read of an answer, and of an error. Far more than texts are: a request for 1,000
# completions of 1,000 tokens each has some 5 MB.
LONGEST, LONGEST_ERROR = 2**24, 2**16


# Of httpx's trace: each brings a stream, the second in the place of the first.
_OPENED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class ServerError(RuntimeError):
    """A model server did not do what it was asked; `status` is its HTTP status, 0 for none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class HalfAnswerError(ServerError):
    """An answer came, but not all of it: no JSON, or none of the texts that were asked for."""


class _Line:
    """One thread's connections, of which one is in use; another thread can cut it."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self._stream: Any = None

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Told by httpx what it does: keeps the connection that it opened last."""
        if event in _OPENED:
            self._stream = info["return_value"]

    def cut(self) -> None:
        """Whoever waits for bytes is told that there are no more."""
        if self._stream is not None:
            with suppress(OSError):  # it was closed meanwhile
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class JsonClient:
    """Requests to one server, safe to use from several threads.

    Args:
        base_url: `http://host:port/v1`; without a path, /v1 is added.
        api_key: sent as a bearer token; empty: none.
        timeout: seconds for one attempt, after which nothing more is read, headers neither, and
            the longest wait a server may ask for.
        retries: further attempts after a passing failure.
        lost: called with what went wrong when a connection failed, before the next attempt; what
            it raises ends the request.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        timeout: float = 300.0,
        retries: int = 4,
        lost: Callable[[ServerError], None] | None = None,
    ) -> None:
        import httpx

        self.base_url = check_url(base_url)
        check_key(self.base_url, api_key)
        self.timeout, self.retries, self._key, self._lost = timeout, retries, api_key, lost
        self._closing = threading.Event()
        # One for each thread at work: the time that one client of many connections takes for a
        # request grows with their number (of 128, to four times that of one).
        self._lines = list[_Line]()
        self._idle = deque[_Line]()
        self._certificates = httpx.create_ssl_context()  # read once

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """End waits and connections; requests under way fail."""
        self._closing.set()
        for line in list(self._lines):
            line.cut()
            line.client.close()

    def get(self, path: str) -> Any:
        """The JSON answer of GET, as `post`; any answer is the last."""
        return self.post(path, None, patient=False)

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        spread: int = 0,
        root: bool = False,
        patient: bool = True,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """The JSON answer (None: no JSON) of POST base_url + path, as read. Raises ServerError.

        spread: any number; requests with different ones do not retry at the same moment.
        root: the path is below the address without /v1, where vLLM keeps /sleep and /wake_up.
        patient: False takes any answer for the last; lost connections are tried again still.
        read: of the JSON answer; when it raises HalfAnswerError, the request is tried again.
        """
        import httpx

        # Not by httpx: what is no Unicode text in a prompt goes out as JSON's escapes, for the
        # server to refuse.
        content = None if body is None else json.dumps(body).encode("ascii")
        for attempt in range(self.retries + 1):
            # Looked up each time: `lost` may have started the server again elsewhere.
            address = (self.base_url.removesuffix("/v1") if root else self.base_url) + path
            wait = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT) * (1 + spread % 512 / 1024)
            problem: ServerError
            try:
                status, text, retry_after = self._send(address, content)
                if 200 <= status < 300:
                    return read(_json(text))
                problem = self._refused(address, status, text)
                if not patient or status not in RETRIED:
                    raise problem
                wait = self._asked_wait(retry_after, problem) or wait
            except HalfAnswerError as error:
                if not patient:
                    raise
                problem = error
            except httpx.TransportError as error:
                problem = self._unreachable(address, error)
                if self._lost is not None and not self.closed:
                    self._lost(problem)
            if attempt == self.retries:
                raise problem
            logger.info("%s; attempt %d of %d", problem, attempt + 2, self.retries + 1)
            if self._closing.wait(wait):
                break
        raise ServerError(f"{self.base_url}: given up, because the generator was closed")

    def _send(self, address: str, content: bytes | None) -> tuple[int, str, str | None]:
        """Status, text and Retry-After of one attempt, on a connection of this thread alone."""
        import httpx

        deadline = time.monotonic() + self.timeout
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._connect()
        # httpx waits so long for each piece that comes, of headers a byte maybe.
        cut = threading.Timer(self.timeout, line.cut)
        cut.daemon = True
        cut.start()
        method, traced = "GET" if content is None else "POST", {"trace": line.note}
        try:
            with line.client.stream(
                method, address, content=content, extensions=traced
            ) as response:
                text = _read(response, address, deadline)
                return response.status_code, text, response.headers.get("Retry-After")
        except (httpx.NetworkError, httpx.ProtocolError) as error:
            if time.monotonic() < deadline:
                raise
            raise httpx.ReadTimeout("it was cut at the deadline") from error
        finally:
            cut.cancel()
            if time.monotonic() < deadline:
                self._idle.append(line)
            else:  # a cut that began may come yet, and must not meet the next request
                self._lines.remove(line)
                line.client.close()

    def _connect(self) -> _Line:
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        client = httpx.Client(
            # Not compressed: a few bytes could be an answer that no memory holds.
            headers=headers | {"Content-Type": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(self.timeout),
            verify=self._certificates,
            # A proxy from the environment cannot reach this machine's own loopback.
            trust_env=not is_loopback(self.base_url),
        )
        line = _Line(client)
        self._lines.append(line)
        if self.closed:
            client.close()
        return line

    def _unreachable(self, address: str, error: Exception) -> ServerError:
        import httpx

        if isinstance(error, httpx.TimeoutException) and not isinstance(
            error, httpx.ConnectTimeout
        ):
            return ServerError(
                f"{address}: no answer within generation.timeout = {self.timeout:g} s; raise it, "
                f"or lower generation.concurrency"
            )
        reason = self._shown(str(error)) or type(error).__name__
        return ServerError(
            f"{address}: no connection ({reason}). Is the server running, and is "
            f"generation.base-url right?"
        )

    def _refused(self, address: str, status: int, text: str) -> ServerError:
        hint = {
            401: "; check the key in the environment variable that generation.api-key-env names",
            403: "; check the key in the environment variable that generation.api-key-env names",
            404: "; check generation.base-url (with its /v1) and models.generator",
            429: "; lower generation.concurrency or raise generation.retries",
        }.get(status, "")
        detail = self._shown(_message(text)) or "no reason given"
        return ServerError(f"{address}: status {status} ({detail}){hint}", status)

    def _asked_wait(self, header: str | None, problem: ServerError) -> float:
        """Seconds that the server's Retry-After asks for, 0 for none."""
        asked = _retry_after(header)
        if asked > self.timeout:
            raise ServerError(
                f"{problem}; it asks to wait {asked:.0f} s, more than generation.timeout = "
                f"{self.timeout:g} s: raise it or come back later",
                problem.status,
            )
        return asked

    def _shown(self, text: str) -> str:
        """Words of others in an error; the key is hidden before they are cut, for none of it to
        be left at the cut."""
        line = one_line(text, LONGEST_ERROR)
        return one_line(line.replace(self._key, "[key]") if self._key else line, SHOWN)


def check_url(base_url: str) -> str:
    """An OpenAI-compatible base address, normalised; ValueError for anything else."""
    parts = urlsplit(base_url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(
            f"generation.base-url = {base_url!r}: must look like http://127.0.0.1:8000/v1"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        # Addresses are logged and shown in errors.
        raise ValueError(
            "generation.base-url: must hold no user, password or query; put the key into the "
            "environment variable that generation.api-key-env names"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def check_key(base_url: str, key: str) -> None:
    """Raise ValueError, without the key, for one that no header carries or that would travel in
    the clear."""
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            "the key in generation.api-key-env holds characters that no header can carry"
        )
    if key and urlsplit(base_url).scheme == "http" and not is_loopback(base_url):
        raise ValueError(
            f"generation.base-url = {base_url!r} would send the key of generation.api-key-env in "
            "the clear: use https, or set api-key-env = ''"
        )


def is_loopback(address: str) -> bool:
    """Whether an address names this machine."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or brackets in brackets without end
        return None


def _read(response: httpx.Response, address: str, deadline: float) -> str:
    """The body of an answer; of an error, its beginning.

    Raises httpx.ReadTimeout at the deadline, even if bytes still trickle in, HalfAnswerError for
    more than LONGEST bytes, and ServerError for a compressed answer.
    """
    import httpx

    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        if not response.is_success:
            return ""
        raise ServerError(
            f"{address}: the answer is compressed ({one_line(coding, 40)}), which was not asked "
            "for; is generation.base-url right?",
            response.status_code,
        )
    data = bytearray()
    for piece in response.iter_raw():
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the answer has no end")
        data += piece
        if len(data) > (LONGEST if response.is_success else LONGEST_ERROR):
            if not response.is_success:
                break
            raise HalfAnswerError(
                f"{address}: the answer is longer than {LONGEST // 2**20} MB; lower the most "
                "tokens of an answer, or the number of completions; is generation.base-url right?"
            )
    if time.monotonic() > deadline:  # a cut connection looks like the end of some bodies
        raise httpx.ReadTimeout("the answer was cut")
    return data.decode("utf-8", "replace")


def _message(text: str) -> str:
    """A server's own words: the message in its JSON error, else the text."""
    found: Any = _json(text)
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else text


def _retry_after(header: str | None) -> float:
    """Seconds that a Retry-After header asks for; 0 for none, or one that cannot be read."""
    if header is None:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(header)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


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
