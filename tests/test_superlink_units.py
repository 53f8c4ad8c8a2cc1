"""deploy/superlink: units that Flower's own parser takes, and the manifest's proxy."""

from __future__ import annotations

import importlib
import re
import shlex
import ssl
import tomllib
from pathlib import Path

from privsyn_flower.app.local.layout import AUTHORITY, CERTIFICATE, KEY, write_certificates
from privsyn_flower.config import load_config
from tests.test_kubernetes import named

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "superlink"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


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


def writable(unit: Path) -> Path:
    """The folder that a unit of ProtectSystem=strict may write to."""
    text = unit.read_text(encoding="utf-8")
    assert "\nProtectSystem=strict\n" in text and "ReadWritePaths" not in text
    (name,) = re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    return Path("/var/lib", name)


def test_the_example_run_and_node_write_where_their_units_may() -> None:
    state = writable(FOLDER / "privsyn-superlink.service")
    config = load_config(ROOT / "configs" / "deployment-example.toml")
    paths = [config.run_folder, config.cache, config.data.public_path, config.models.generator]
    assert all(Path(path).is_relative_to(state) for path in paths), paths
    text = (FOLDER / "privsyn-superlink.service").read_text(encoding="utf-8")
    assert f" HOME={state}\n" in text  # of the ledgers and the keys of an aggregator's noise
    assert f"--run-config {state}/run.toml\n```" in PAGE and "/srv/" not in PAGE
    node = tomllib.loads((ROOT / "docs" / "examples" / "node.toml").read_text(encoding="utf-8"))
    assert Path(node["cache"]).is_relative_to(
        writable(ROOT / "docs" / "examples" / "privsyn-node.service")
    )


def test_the_page_sends_nodes_to_the_proxy_and_flwr_past_it() -> None:
    """The proxy answers whatever is no node's with 404."""
    conf = (FOLDER / "nginx.conf").read_text(encoding="utf-8")
    (port,) = re.findall(r"listen (\d+) ssl;", conf)
    words = command("privsyn-superlink.service")
    own = words[words.index("--port") + 1]
    assert f"proxy_pass https://127.0.0.1:{own};" in conf and "location / { return 404; }" in conf
    (bullet,) = re.findall(r"^- \[deploy/superlink\].*?(?=\n\n|\n- )", PAGE, re.M | re.S)
    flat = " ".join(bullet.split())
    assert f"on port {port} for nodes alone, who then name it for {own}. `flwr` gets 404" in flat
    assert f"# with the units: localhost:{own}\n" in PAGE


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
