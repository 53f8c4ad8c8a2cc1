"""deploy/superlink: units that Flower's own parser takes, and the manifest's proxy."""

from __future__ import annotations

import importlib
import re
import shlex
import ssl
from pathlib import Path

from privsyn_flower.app.local.layout import AUTHORITY, CERTIFICATE, KEY, write_certificates
from tests.test_kubernetes import named

FOLDER = Path(__file__).parent.parent / "deploy" / "superlink"


def command(unit: str) -> list[str]:
    text = (FOLDER / unit).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    return shlex.split(line)


def test_the_superlink_starts_as_flower_takes_it() -> None:
    words = command("privsyn-superlink.service")
    at = words.index("flower-superlink")
    assert words[1:at] == ["-P", "-m", "privsyn_flower.app.local.loopback_guard"]
    module = importlib.import_module("flwr.superlink.cli.flower_superlink")
    found = module._parse_args_run_superlink().parse_args(words[at + 1 :])
    assert (found.host, found.port, found.enable_supernode_auth) == ("127.0.0.1", 8000, True)
    assert not found.insecure and found.database == "/var/lib/privsyn/superlink.db"


def test_the_proxy_is_the_manifests_and_of_the_superlinks_account() -> None:
    conf = (FOLDER / "nginx.conf").read_text(encoding="utf-8")
    assert conf == named("ConfigMap", "superlink")["data"]["nginx.conf"]
    assert "/etc/privsyn/nginx.conf" in command("privsyn-proxy.service")
    for certificate in re.findall(r"/etc/privsyn/tls/\S+?(?=;)", conf):
        assert certificate in " ".join(command("privsyn-superlink.service"))
    accounts = {
        re.findall(r"^User=(.*)$", p.read_text(), re.M)[0] for p in FOLDER.glob("*.service")
    }
    assert accounts == {"privsyn"}


def shakes_hands(trusted: ssl.SSLContext, server: Path) -> bool:
    """Whether a client connects to a server with these certificates; in memory."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(server / CERTIFICATE, server / KEY)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [trusted.wrap_bio(down, up, server_hostname="localhost"), own.wrap_bio(up, down, True)]
    for _ in range(3):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return not ends


def test_nodes_with_both_authorities_take_the_old_and_the_new_certificate(tmp_path: Path) -> None:
    """docs/deployment.md, as Flower's client reads --root-certificates."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        write_certificates(folder)
    one = (old / AUTHORITY).read_text()
    both = one + (new / AUTHORITY).read_text()
    for text, taken in ((one, [True, False]), (both, [True, True])):
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.load_verify_locations(cadata=text)
        assert [shakes_hands(trusted, folder) for folder in (old, new)] == taken
