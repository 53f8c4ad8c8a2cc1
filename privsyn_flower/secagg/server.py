"""The server's side of the secure sum: a relay that learns the sum and nothing else.

One `SecureSum` is one session. Its methods take what the nodes sent in a stage and give what
they are sent in the next; how it travels is somebody else's concern. Nodes that sent
nothing are simply not in the mappings.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privsyn_flower.common.arrays import U64
from privsyn_flower.privacy.encoding.quantize import unpack
from privsyn_flower.secagg import keys, node
from privsyn_flower.secagg.cohort import Code, Cohort, Member, SecaggError, Session, pack_list

logger = logging.getLogger("privsyn_flower")

Secret = TypeVar("Secret")


class SecureSum:
    """One secure sum; all it holds is public until `total`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.wrong = set[int]()  # ids of nodes whose shares were not those that were dealt to them

    def gather(self, adverts: Mapping[int, Member]) -> bytes:
        """After stage 1: node id -> its keys. The cohort, which every member is sent.

        Entries under another node's id and bad signatures are left out, and so are all who share
        an identity. Raises SecaggError when the rest is too few or too light.
        """
        members = [
            member
            for node_id, member in adverts.items()
            if member.id == node_id
            and keys.signed(member.identity, member.signature, member.signed_text(self.session))
        ]
        copies, told = _copies(members), ""
        if copies:
            told = (
                f"{len(copies)} nodes are left out, as they share an identity key (the same cache "
                f"folder, or a copied device image): {', '.join(map(str, copies))}"
            )
            logger.warning("%s", told)
        try:
            rest = [member for member in members if member.id not in copies]
            self.cohort = Cohort.of(self.session, rest)
        except SecaggError as error:
            if told:
                error.args = (f"{error}; {told}",)
            raise
        return self.cohort.encode()

    def relay(self, dealt: Mapping[int, bytes]) -> dict[int, tuple[bytes, bytes]]:
        """After stage 2: node id -> its commitment and sealed shares. Returns for every node
        that dealt: the list of those who did, and what was sealed to it."""
        cohort = self.cohort
        self.commitments: dict[int, bytes] = {}
        sealed: dict[tuple[int, int], bytes] = {}
        for at, member in enumerate(cohort.members):
            data = dealt.get(member.id, b"")
            neighbours = cohort.neighbours[at]
            if len(data) != 32 + node.SEALED * len(neighbours):
                continue
            self.commitments[at] = data[:32]
            for slot, j in enumerate(neighbours):
                start = 32 + slot * node.SEALED
                sealed[at, j] = data[start : start + node.SEALED]
        self.sharers = [at in self.commitments for at in range(len(cohort.members))]
        cohort.check_survivors(self.sharers)
        listed = pack_list(self.sharers)
        return {
            cohort.members[at].id: (
                listed,
                b"".join(sealed[j, at] for j in cohort.neighbours[at] if self.sharers[j]),
            )
            for at in self.commitments
        }

    def survive(self, masked: Mapping[int, bytes]) -> bytes:
        """After stage 3: node id -> its masked vector. The list of survivors, to be signed.

        Raises SecaggError(SURVIVORS) when their weight, or the neighbours left to one of them
        or to one of the lost, do not suffice; then no node must be asked to unmask.
        """
        cohort, session = self.cohort, self.session
        self.masked = {
            at: unpack(masked[member.id], session.bits, session.length)
            for at, member in enumerate(cohort.members)
            if self.sharers[at]
            and len(masked.get(member.id, b"")) == session.length * session.words
        }
        self.survivors = [at in self.masked for at in range(len(cohort.members))]
        cohort.check_survivors(self.survivors)
        cohort.check_quorum(self.survivors)
        for at, shared in enumerate(self.sharers):
            if shared:
                cohort.check_neighbours(at, self.survivors)
        return pack_list(self.survivors)

    def confirm(self, confirmed: Mapping[int, bytes]) -> tuple[bytes, bytes]:
        """After stage 4: node id -> its signature under the list. The signers for stage 5, the
        heaviest that make a quorum, and their signatures. Raises SecaggError(SURVIVORS) when
        they do not, or cannot rebuild every secret; then no node must be asked to unmask."""
        cohort = self.cohort
        text = cohort.confirmed_text(self.sharers, self.survivors)
        found = {
            at: confirmed[m.id]
            for at, m in enumerate(cohort.members)
            if at in self.masked and keys.signed(m.identity, confirmed.get(m.id, b""), text)
        }
        self.signers = [at in found for at in range(len(cohort.members))]
        cohort.check_quorum(self.signers)
        for at, shared in enumerate(self.sharers):
            if shared:
                cohort.check_neighbours(at, self.signers)
        enough = [False] * len(cohort.members)
        for at in sorted(found, key=lambda at: -cohort.members[at].weight):
            enough[at] = True
            with contextlib.suppress(SecaggError):
                cohort.check_quorum(enough)
                break
        return pack_list(enough), b"".join(found[at] for at in sorted(found) if enough[at])

    def total(self, given: Mapping[int, bytes]) -> U64:
        """After stage 5: node id -> its shares. The exact sum mod 2^bits (length,) of the
        survivors' vectors; `wrong` then names the nodes whose shares were not those dealt. Raises
        SecaggError(SURVIVORS) when too few answered, SEALED when too few shares give the secrets
        that were dealt."""
        seeds, secrets = self._collect(given)
        cohort, session = self.cohort, self.session
        transcript = cohort.transcript(self.sharers)
        total = np.zeros(session.length, dtype=np.uint64)  # (length,)
        for at, words in self.masked.items():
            total += words
            total -= node.self_mask(self._seed(at, seeds[at]), transcript, session)
        for lost, shares in secrets.items():
            secret = self._secret(lost, shares)
            for at in cohort.neighbours[lost]:
                if self.survivors[at]:
                    pair = node.pair_mask(secret, cohort, transcript, lost, at)  # (length,)
                    np.subtract(total, pair, total) if at < lost else np.add(total, pair, total)
        return node.residues(total, session.bits)

    def _collect(
        self, given: Mapping[int, bytes]
    ) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
        """Shares by whose secret they are: seeds of survivors, mask keys of the lost."""
        cohort, threshold = self.cohort, self.cohort.graph.threshold
        seeds: dict[int, dict[int, int]] = {at: {} for at in self.masked}
        secrets: dict[int, dict[int, int]] = {
            at: {} for at, shared in enumerate(self.sharers) if shared and not self.survivors[at]
        }
        for at in self.masked:
            data = given.get(cohort.members[at].id, b"")
            peers = [j for j in cohort.neighbours[at] if self.sharers[j]]
            if len(data) != node.SHARE * len(peers):
                continue
            for slot, j in enumerate(peers):
                shares = seeds[j] if self.survivors[j] else secrets[j]
                part = data[slot * node.SHARE : (slot + 1) * node.SHARE]
                shares[at + 1] = int.from_bytes(part, "big")
        short = [len(s) for s in (*seeds.values(), *secrets.values()) if len(s) < threshold]
        if short:
            raise SecaggError(
                Code.SURVIVORS,
                f"{len(short)} secrets have as few as {min(short)} shares, the threshold is "
                f"{threshold}: nothing can be unmasked",
            )
        return seeds, secrets

    def _seed(self, at: int, shares: dict[int, int]) -> bytes:
        def committed(data: bytes) -> bytes | None:
            same = keys.digest(b"seed", self.cohort.digest, data) == self.commitments[at]
            return data if same else None

        return self._rebuilt(shares, committed, f"the seed of member {at}")

    def _secret(self, at: int, shares: dict[int, int]) -> X25519PrivateKey:
        def known(data: bytes) -> X25519PrivateKey | None:
            secret = keys.load(data)
            same = secret.public_key().public_bytes_raw() == self.cohort.members[at].mask
            return secret if same else None

        return self._rebuilt(shares, known, f"the mask key of member {at}")

    def _rebuilt(
        self, shares: dict[int, int], checked: Callable[[bytes], Secret | None], what: str
    ) -> Secret:
        """The secret behind shares (point -> share), of which some may be wrong.

        checked: the secret, or None where it is not the one that its owner committed to in stage 1
        or 2. Other shares than the first are tried while there are more than the threshold. That
        tells the server nothing: it has all of them by now, the list that they are for is signed,
        and there is one secret that passes. Raises SecaggError(SEALED).
        """
        points, threshold = sorted(shares), self.cohort.graph.threshold
        starts = range(len(points) if len(points) > threshold else 1)
        for start in starts:  # around the circle: so any single share is left out once
            chosen = [*points, *points][start : start + threshold]
            secret = keys.combine({point: shares[point] for point in chosen})
            found = checked(secret.to_bytes(node.SHARE, "big")[-32:])
            if found is not None:
                if start:  # a share is right where it fits to all but one of the chosen
                    fits = {point: shares[point] for point in chosen[1:]}
                    self.wrong |= {
                        self.cohort.members[point - 1].id
                        for point in points
                        if point not in chosen
                        and keys.combine({**fits, point: shares[point]}) != secret
                    }
                return found
        raise SecaggError(Code.SEALED, f"wrong shares of {what}")


def _copies(members: list[Member]) -> list[int]:
    """Ids of those who share an identity; nodes would refuse a cohort with two of them.

    Each signed under its own node id, so all of them have the private key: it was copied.
    """
    holders = Counter(member.identity for member in members)
    return sorted(member.id for member in members if holders[member.identity] > 1)


def members_of(adverts: Mapping[int, bytes], weights: Mapping[int, int]) -> dict[int, Member]:
    """Readable entries with the weight that the run counts on."""
    members = {}
    for node_id, data in adverts.items():
        try:
            member = Cohort.decode_member(data)
        except SecaggError as error:
            logger.warning("node %d is left out: %s", node_id, error)
            continue
        if member.weight != weights[node_id]:
            logger.warning("node %d is left out: it claims another weight", node_id)
            continue
        members[node_id] = member
    return members
