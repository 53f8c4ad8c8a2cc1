"""The folder of a federation on one machine, its TLS for 127.0.0.1 and its SuperNodes' keys.

federation.json             ports and process ids
tls/                        ca.crt, server.crt, server.key
flower/                     FLWR_HOME of the SuperLink and of `flwr`: config.toml names it "local"
superlink.log
node-0/                     node.toml, key, key.pub, users.jsonl (PRIVATE), cache/ (PRIVATE),
                            flower/, supernode.log

A real federation has certificates of its own authority: docs/deployment.md."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privsyn_flower.app.local.simulation import flat_toml
from privsyn_flower.common.files import PRIVATE_FILE, private_folder, replace_private, write_atomic
from privsyn_flower.config import Scalar
from privsyn_flower.data import DataError, load_users, shard_sizes
from privsyn_flower.runs import write_json, write_jsonl

FACTS = "federation.json"


def create(
    folder: Path,
    data: Sequence[Path],
    *,
    nodes: int = 0,
    weak: int = 0,
    node_config: Mapping[str, Scalar] = {},
) -> None:
    """Lay out a federation in `folder`; starts nothing.

    data: one file of users (PRIVATE) per node; or a single one, whose users are dealt in order
    to `nodes` nodes, as in simulation. A node's weight is the number of users it is given.
    weak: the last so many nodes have resources = "weak", the others "strong"; 0: none has any.
    node_config: what all nodes have in common (embedder, device, policy).
    Raises FileExistsError when the folder holds a federation, DataError on unusable files.
    """
    if (folder / FACTS).exists():
        raise FileExistsError(f"{folder} holds a federation: start it without --data")
    private_folder(folder)
    shards = _dealt(data[0], nodes) if len(data) == 1 and nodes > 1 else list(map(load_users, data))
    for number, users in enumerate(shards):
        node = private_folder(folder / f"node-{number}")
        file = node / "users.jsonl"
        if len(data) == len(shards):
            file = data[number].absolute()
        else:
            rows = ({"user_id": u, "text": text} for u, texts in users.items() for text in texts)
            write_jsonl(file, rows)
            file.chmod(PRIVATE_FILE)
        if not users:
            raise DataError(f"{file} holds no users: a node needs at least one")
        config = {
            "data": str(file),
            "weight": len(users),
            "cache": str(node / "cache"),
            "partition-id": number,
            **({"resources": "weak" if number >= len(shards) - weak else "strong"} if weak else {}),
            **node_config,
        }
        write_atomic(node / "node.toml", flat_toml(config).encode())
    write_json(folder / FACTS, {"port": 0, "pid": 0, "nodes": [{"pid": 0}] * len(shards)})


def _dealt(file: Path, nodes: int) -> list[dict[str, list[str]]]:
    users = list(load_users(file).items())
    sizes = shard_sizes(len(users), nodes)
    starts = [sum(sizes[:at]) for at in range(nodes)]
    return [dict(users[at : at + size]) for at, size in zip(starts, sizes, strict=True)]


AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
VALID = datetime.timedelta(days=365)


def write_certificates(folder: Path) -> None:
    """A new authority's ca.crt, and server.crt and server.key (0600) for loopback under it.

    The authority's own key is never written: nobody can make another certificate under it.
    """
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), _new_key()
    name = _name("privsyn-flower local authority")
    authority = (
        _begun(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    addresses: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        _begun(name, _name("localhost"), key.public_key())
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    _write_secret(folder / KEY, key, serialization.PrivateFormat.PKCS8)
    write_atomic(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    write_atomic(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))


def write_node_key(path: Path) -> Path:
    """A SuperNode's key pair (ECDSA, NIST P-384), once: `path` (0600) and `path`.pub, returned.

    The same as `ssh-keygen -t ecdsa -b 384`.
    """
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        key = _new_key()
        _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
        encoded = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_atomic(public, encoded + b"\n")
    return public


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _begun(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ a little
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    replace_private(path, data)
