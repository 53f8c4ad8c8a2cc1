"""One node's side of the secure sum: five answers, each from the state the last one left.

Source: Bonawitz et al. 2017 (ePrint 2017/281), Figure 4 with its consistency check, the neighbour
graph of Bell et al. 2020, and checks of its own: masks are bound to the list of those who shared,
so that servers which show different lists get noise; the nodes check the surviving weight (W_min)
themselves, on the one list that a majority signed; each session deals, masks, signs and unmasks
once.

The state is a plain mapping of texts, numbers and bytes. It is SECRET while a round runs, lives
in the node's memory only (Flower's Context.state), and is emptied when the round ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privsyn_flower.common.arrays import U64
from privsyn_flower.privacy.encoding.quantize import pack
from privsyn_flower.secagg import keys
from privsyn_flower.secagg.cohort import Code, Cohort, Member, SecaggError, Session, unpack_list

State = MutableMapping[str, Any]
Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

SHARE = keys.SHARE_BYTES
PAIR = 2 * SHARE  # a sealed text holds a share of both secrets
SEALED = PAIR + keys.SEAL_BYTES
KEY = 32
SIGNATURE = 64

# accept(cohort, listed): the node's own conditions on those left; raises SecaggError or another
# refusal.
Accept = Callable[[Cohort, list[bool]], None]
# once(stage, session) writes down, for good, that this node answers a stage of a session, and
# raises SecaggError(REPEATED) or another refusal when it did before. The state alone cannot
# know: two messages may be in flight, each with a copy of it.
Once = Callable[[str, Session], None]


def anybody(cohort: Cohort, listed: list[bool]) -> None:
    """No conditions beyond the protocol's."""


@dataclass(frozen=True)
class Party:
    """What one node brings to a session: see `advertise`, `share` (trust), `mask` (vector), `Once`.

    accept(cohort, listed) is called before the node masks and before it signs the survivors.
    """

    node_id: int
    weight: int
    identity: Ed25519PrivateKey
    trust: Callable[[Cohort], None]
    vector: Callable[[Session, int], Integers]
    once: Once
    accept: Accept = anybody


def answer(request: Mapping[str, Any], state: State, party: Party) -> bytes:
    """The node's bytes for the stage that `request`, from an untrusted side, names.

    Raises SecaggError, or whatever `party` raises. Either way the session is over for this node
    and its secrets are erased, unless the message was of another session or stage.
    """
    try:
        return _stage(request, state, party)
    except BaseException as error:
        if not (isinstance(error, SecaggError) and error.code is Code.SESSION):
            state.clear()
        raise


def session_of(request: Mapping[str, Any], state: State) -> Session:
    """The session that a stage belongs to. Raises SecaggError."""
    if request.get("stage") == "advertise":
        return Session.from_json(str(request.get("session", "")))
    if "session" not in state:
        raise SecaggError(Code.SESSION, "this node is in no session (restarted?)")
    return Session.from_json(str(state["session"]))


def _stage(request: Mapping[str, Any], state: State, party: Party) -> bytes:
    def payload(key: str) -> bytes:
        value = request.get(key)
        if not isinstance(value, bytes):
            raise SecaggError(Code.MALFORMED, f"{key!r} is missing")
        return value

    stage = request.get("stage")
    if stage == "advertise":
        session = session_of(request, state)
        return advertise(state, session, party.node_id, party.weight, party.identity).encode()
    digest = payload("session")
    if stage == "share":
        return share(state, digest, payload("cohort"), party.trust, party.once)
    if stage == "mask":
        return mask(state, digest, payload("list"), payload("sealed"), party.vector, party.accept)
    if stage == "confirm":
        return confirm(state, digest, payload("list"), party.identity, party.once, party.accept)
    if stage == "unmask":
        return unmask(state, digest, payload("signers"), payload("signatures"), party.once)
    raise SecaggError(Code.MALFORMED, f"stage {stage!r} is not known here")


def advertise(
    state: State, session: Session, node_id: int, weight: int, identity: Ed25519PrivateKey
) -> Member:
    """Stage 1: fresh keys for this sum alone, signed by the node's identity key.

    node_id: as Flower names this node. weight: the users it stands for. Whatever an unfinished
    round left in `state` is dropped.
    """
    state.clear()
    cipher, mask = keys.new_secret(), keys.new_secret()
    own = identity.public_key().public_bytes_raw()
    member = Member(node_id, weight, own, keys.public_key(cipher), keys.public_key(mask))
    member = replace(member, signature=keys.sign(identity, member.signed_text(session)))
    state.update(stage="advertised", session=session.to_json(), member=member.encode())
    state.update(cipher=cipher, mask=mask)
    return member


def share(
    state: State,
    session_digest: bytes,
    cohort_data: bytes,
    trust: Callable[[Cohort], None],
    once: Once,
) -> bytes:
    """Stage 2: check the cohort, deal shares of both secrets, sealed to each neighbour.

    trust(cohort): the node's own conditions (policy, roster); raises SecaggError. once: dealing
    to two cohorts would give two neighbourhoods shares of one key, and use a sealing key twice.
    Returns a 32-byte commitment to the self mask's seed, then one sealed pair a neighbour, in
    the order of `cohort.neighbours`. The key that seals is erased here.
    """
    session = _session(state, "advertised", session_digest)
    cohort = Cohort.decode(session, cohort_data)
    own = Cohort.decode_member(bytes(state["member"]))
    at = cohort.position(own.id)
    if cohort.members[at] != own:
        raise SecaggError(Code.PEER, "this node's own entry was changed")
    if cohort.forgers:
        raise SecaggError(Code.SIGNATURE, f"nodes {cohort.forgers[:8]} did not sign their keys")
    trust(cohort)
    once("share", session)
    neighbours, threshold = cohort.neighbours[at], cohort.graph.threshold
    seed = secrets.token_bytes(32)
    points = [j + 1 for j in neighbours]
    of_seed = keys.split(int.from_bytes(seed, "big"), threshold, points)
    of_mask = keys.split(int.from_bytes(bytes(state["mask"]), "big"), threshold, points)
    secret = keys.load(bytes(state["cipher"]))
    sealed, openers = [], []
    for j in neighbours:
        text = of_seed[j + 1].to_bytes(SHARE, "big") + of_mask[j + 1].to_bytes(SHARE, "big")
        shared = _agree(secret, cohort.members[j].cipher)
        sealed.append(keys.seal(_seal_key(shared, cohort, at, j), text, cohort.digest))
        openers.append(_seal_key(shared, cohort, j, at))
    del state["cipher"]
    state.update(stage="shared", cohort=cohort_data, seed=seed, openers=b"".join(openers))
    return keys.digest(b"seed", cohort.digest, seed) + b"".join(sealed)


def mask(
    state: State,
    session_digest: bytes,
    sharers_data: bytes,
    sealed_data: bytes,
    vector: Callable[[Session, int], Integers],
    accept: Accept = anybody,
) -> bytes:
    """Stage 3: the node's integer vector under its masks, packed to bits / 8 bytes a coordinate.

    sharers_data: the list of members who dealt shares. sealed_data: what the neighbours among
    them sealed to this node, in order. vector(session, weight of the cohort): the node's vector
    (length,), PRIVATE; it must first write down that this session was answered, and raise
    SecaggError(REPEATED) when it was before. The secrets behind the masks are erased here.
    """
    session, cohort, at = _standing(state, "shared", session_digest)
    sharers = unpack_list(sharers_data, len(cohort.members))
    if not sharers[at]:
        raise SecaggError(Code.LIST, "this node dealt shares and is not on the list")
    cohort.check_survivors(sharers)
    cohort.check_neighbours(at, sharers)
    accept(cohort, sharers)
    shares = _open(bytes(state["openers"]), cohort, at, sharers, sealed_data)
    values = np.asarray(vector(session, sum(m.weight for m in cohort.members)))
    if values.shape != (session.length,) or values.dtype.kind not in "iu":
        raise SecaggError(
            Code.MALFORMED, f"a vector of {values.dtype} {values.shape}, expected {session.length}"
        )
    transcript = cohort.transcript(sharers)
    # Words wrap at a multiple of 2^bits, and so do sums of them.
    total: keys.Residues = values.astype(keys.residue_type(session.bits))  # (length,)
    total += self_mask(bytes(state["seed"]), transcript, session)
    secret = keys.load(bytes(state["mask"]))
    for j in cohort.neighbours[at]:
        if sharers[j]:
            pair = pair_mask(secret, cohort, transcript, at, j)  # (length,)
            np.add(total, pair, total) if at < j else np.subtract(total, pair, total)
    for name in ("mask", "seed", "openers"):
        del state[name]
    state.update(stage="masked", sharers=sharers_data, shares=shares)
    return pack(residues(total, session.bits), session.bits).tobytes()


def confirm(
    state: State,
    session_digest: bytes,
    survivors_data: bytes,
    identity: Ed25519PrivateKey,
    once: Once,
    accept: Accept = anybody,
) -> bytes:
    """Stage 4: check the list of those whose masked vectors arrived, and sign it: 64 bytes.

    Only one list a session. Otherwise a server could show each node a list of its own, each
    heavy enough, and unmask a sum of fewer than W_min that is on none of them.
    """
    session, cohort, at = _standing(state, "masked", session_digest)
    sharers = unpack_list(bytes(state["sharers"]), len(cohort.members))
    survivors = unpack_list(survivors_data, len(cohort.members))
    if not survivors[at]:
        raise SecaggError(Code.LIST, "this node sent its vector and is not on the list")
    if any(here and not there for here, there in zip(survivors, sharers, strict=True)):
        raise SecaggError(Code.LIST, "a survivor is listed that dealt no shares")
    cohort.check_survivors(survivors)
    cohort.check_neighbours(at, survivors)
    accept(cohort, survivors)
    once("confirm", session)
    state.update(stage="confirmed", survivors=survivors_data)
    return keys.sign(identity, cohort.confirmed_text(sharers, survivors))


def unmask(
    state: State, session_digest: bytes, signers_data: bytes, signatures: bytes, once: Once
) -> bytes:
    """Stage 5: one share for each neighbour that shared: of its seed if its masked vector
    arrived, of its mask key if not. Never both, and only once: the state is emptied first.

    signers_data, signatures: members, and their signatures under the list this node signed, in
    order; together they must be a quorum (`Cohort.check_quorum`).
    """
    session, cohort, at = _standing(state, "confirmed", session_digest)
    sharers = unpack_list(bytes(state["sharers"]), len(cohort.members))
    survivors = unpack_list(bytes(state["survivors"]), len(cohort.members))
    signers = unpack_list(signers_data, len(cohort.members))
    if len(signatures) != SIGNATURE * sum(signers):
        raise SecaggError(Code.MALFORMED, f"{len(signatures)} bytes from {sum(signers)} signers")
    cohort.check_quorum(signers)
    text = cohort.confirmed_text(sharers, survivors)
    signing = (member for member, here in zip(cohort.members, signers, strict=True) if here)
    for slot, member in enumerate(signing):
        signature = signatures[slot * SIGNATURE : (slot + 1) * SIGNATURE]
        if not keys.signed(member.identity, signature, text):
            raise SecaggError(Code.LIST, f"node {member.id} did not sign this list of survivors")
    shares = bytes(state["shares"])
    once("unmask", session)
    state.clear()
    given = []
    peers = (j for j in cohort.neighbours[at] if sharers[j])
    for slot, j in enumerate(peers):
        start = slot * PAIR + (0 if survivors[j] else SHARE)
        given.append(shares[start : start + SHARE])
    return b"".join(given)


def self_mask(seed: bytes, transcript: bytes, session: Session) -> keys.Residues:
    """The mask that only a node's seed gives: (length,) words. SECRET."""
    key = keys.derive(seed, transcript, b"self mask")
    return keys.mask_stream(key, session.length, session.bits)


def pair_mask(
    secret: X25519PrivateKey, cohort: Cohort, transcript: bytes, at: int, peer: int
) -> keys.Residues:
    """The mask shared by the members at two positions, from one's secret key. SECRET.

    The lower position adds it, the higher one subtracts it, so it vanishes from the sum.
    """
    shared = _agree(secret, cohort.members[peer].mask)
    purpose = b"pair mask %d %d" % (min(at, peer), max(at, peer))
    key = keys.derive(shared, transcript, purpose)
    return keys.mask_stream(key, cohort.session.length, cohort.session.bits)


def residues(words: keys.Residues, bits: int) -> U64:
    """Words (d,) -> residues in [0, 2^bits): (d,) uint64."""
    return words.astype(np.uint64) & np.uint64((1 << bits) - 1)


def _session(state: State, stage: str, session_digest: bytes) -> Session:
    """The session this node is in. Raises SecaggError(SESSION) when it is another, or none."""
    if state.get("stage") != stage:
        raise SecaggError(
            Code.SESSION, f"this node is not at stage {stage!r} (restarted, or asked out of order)"
        )
    session = Session.from_json(str(state["session"]))
    if session.digest != session_digest:
        raise SecaggError(Code.SESSION, "this node is in another session")
    return session


def _standing(state: State, stage: str, session_digest: bytes) -> tuple[Session, Cohort, int]:
    """The session, its cohort, and this node's position. Raises SecaggError(SESSION)."""
    session = _session(state, stage, session_digest)
    cohort = Cohort.decode(session, bytes(state["cohort"]))
    return session, cohort, cohort.position(Cohort.decode_member(bytes(state["member"])).id)


def _agree(secret: X25519PrivateKey, peer: bytes) -> bytes:
    try:
        return keys.agree(secret, peer)
    except ValueError:
        raise SecaggError(Code.PEER, "a member's key is not a valid X25519 key") from None


def _seal_key(shared: bytes, cohort: Cohort, sender: int, receiver: int) -> bytes:
    """The key for one sealed text: bound to the cohort and to the direction."""
    return keys.derive(shared, cohort.digest, b"share %d to %d" % (sender, receiver))


def _open(openers: bytes, cohort: Cohort, at: int, sharers: list[bool], data: bytes) -> bytes:
    """What the neighbours among the sharers sealed -> their shares, checked, joined. SECRET."""
    slots = [(slot, j) for slot, j in enumerate(cohort.neighbours[at]) if sharers[j]]
    if len(data) != SEALED * len(slots):
        raise SecaggError(Code.MALFORMED, f"{len(data)} bytes of shares from {len(slots)} peers")
    opened = []
    for start, (slot, j) in zip(range(0, len(data), SEALED), slots, strict=True):
        key = openers[slot * KEY : (slot + 1) * KEY]
        text = keys.unseal(key, data[start : start + SEALED], cohort.digest)
        if text is None or len(text) != PAIR:
            raise SecaggError(Code.SEALED, f"the share of member {j} was not sealed for this node")
        opened.append(text)
    return b"".join(opened)
