"""The protocol in memory: drop-outs, thresholds, and who does not keep to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from sums import LENGTH, InMemory, make_client, make_plan

from fedloom.core.errors import MessageError
from fedloom.secure.client import SumClient
from fedloom.secure.plan import KEYS_BYTES, agreement
from fedloom.secure.primitives import KEY_BYTES, SIGNATURE_BYTES, SigningKey
from fedloom.secure.shamir import SHARE_BYTES


def test_the_total_of_all_is_the_plain_sum() -> None:
    sums = InMemory(5, 3)
    sums.run()
    assert np.array_equal(sums.server.total(), sums.plain(range(5)))


@pytest.mark.parametrize(
    ("gone", "summed"),
    [
        ({"keys": [1]}, [0, 2, 3, 4, 5, 6]),
        ({"share": [1, 2]}, [0, 3, 4, 5, 6]),
        ({"mask": [0, 6]}, [1, 2, 3, 4, 5]),
        ({"agree": [1, 5]}, range(7)),
        ({"open": [2, 3]}, range(7)),
        ({"share": [6], "mask": [2], "open": [0]}, [0, 1, 3, 4, 5]),
    ],
)
def test_the_total_is_of_those_whose_summand_came(
    gone: Mapping[str, list[int]], summed: range | list[int]
) -> None:
    sums = InMemory(7, 4, **gone)
    sums.run()
    assert sums.server.alive == list(summed)
    assert np.array_equal(sums.server.total(), sums.plain(summed))


@pytest.mark.parametrize("stage", ["keys", "share", "mask", "agree", "open"])
def test_with_fewer_than_the_threshold_nothing_is_opened(stage: str) -> None:
    sums = InMemory(5, 3, **{stage: [0, 1, 4]})
    with pytest.raises(MessageError, match=r"2 of 5 clients .* at least 3"):
        sums.run_and_open()
    if stage != "open":
        assert not sums.server._opened


def test_a_client_alone_with_the_server_says_nothing() -> None:
    """Whatever sets it is told of, below the threshold it does not sign."""
    sums = InMemory(5, 3)
    sums.run("mask")
    with pytest.raises(MessageError, match="1 of 5 clients sent their summand"):
        sums.clients[0].agree([0], [1, 2, 3, 4])


def test_lists_of_who_is_in_and_out_that_overlap_are_refused() -> None:
    """Else a server could ask for both secrets of one client."""
    sums = InMemory(5, 3)
    sums.run("mask")
    client = sums.clients[0]
    for alive, dead in (
        ([0, 1, 2, 3, 4], [4]),
        ([0, 1, 2, 3], [3, 4]),
        ([0, 1, 2, 3], []),
        ([0, 1, 2, 3, 3], [4]),
        ([0, 1, 2], [3, 4, 5]),
    ):
        with pytest.raises(MessageError, match=r"either in the total|not called"):
            client.agree(alive, dead)
    with pytest.raises(MessageError, match="is said to be out"):
        client.agree([1, 2, 3, 4], [0])
    with pytest.raises(MessageError, match="0 of 5"):
        client.open({})


def test_one_share_of_each_client_is_opened_and_never_both() -> None:
    sums = InMemory(5, 3, mask=[4])
    sums.run()
    for shares in sums.server._opened.values():
        assert shares.keys() == set(range(5))
        assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    holder = sums.clients[0]
    opened = sums.server._opened[0]
    for client in range(5):
        own, masking = (
            holder.shares[client][:SHARE_BYTES],
            holder.shares[client][SHARE_BYTES:],
        )
        assert opened[client] == (masking if client == 4 else own)


def test_signatures_of_another_agreement_open_nothing() -> None:
    """A server that tells one half of who is in, and the other half of others."""
    sums = InMemory(6, 4)
    sums.run("mask")
    clients = sums.clients
    clients[:3] = [client.agree(range(6), []) for client in clients[:3]]
    clients[3:] = [client.agree([0, 2, 3, 4, 5], [1]) for client in clients[3:]]
    signed = {n: client.signature() for n, client in enumerate(clients)}
    signatures = {n: signed[n] for n in (0, 1, 2)}
    others = {n: signed[n] for n in (3, 4, 5)}
    with pytest.raises(MessageError, match="3 of 6 clients agreed"):
        clients[0].open(signatures)
    with pytest.raises(MessageError, match="client 3 has not agreed to the same"):
        clients[0].open(signatures | others)
    with pytest.raises(MessageError, match="has not agreed to the same"):
        clients[3].open(signatures | others)


def test_keys_that_their_owner_did_not_sign_are_refused() -> None:
    sums = InMemory(4, 3)
    sums.run("keys")
    keys = sums.server.keys
    for at in (0, KEY_BYTES, 2 * KEY_BYTES, KEYS_BYTES - 1):
        changed = bytearray(keys[2])
        changed[at] ^= 1
        with pytest.raises(MessageError, match="client 2 are not signed by it"):
            sums.clients[0].share({**keys, 2: bytes(changed)})
        with pytest.raises(MessageError, match="client 2 are not signed by it"):
            sums.server.take_keys(2, bytes(changed))
    with pytest.raises(MessageError, match="client 2 are not signed by it"):
        sums.clients[0].share({**keys, 2: keys[3]})


@pytest.mark.parametrize("place", [0, 1])
def test_a_key_that_gives_no_secret_is_its_owners_fault(place: int) -> None:
    """Properly signed, and one with which every private key gives zero."""
    sums = InMemory(4, 3)
    sums.run("keys")
    weak = signed_with(sums, 2, place, bytes(KEY_BYTES))
    reason = "client 2 sent a key that gives no secret"
    with pytest.raises(MessageError, match=reason):
        sums.server.take_keys(2, weak)
    with pytest.raises(MessageError, match=reason):
        sums.clients[0].share({**sums.server.keys, 2: weak})


def signed_with(sums: InMemory, client: int, place: int, key: bytes) -> bytes:
    """What a client sends of its keys with another one in a place, signed by it."""
    at = slice(place * KEY_BYTES, (place + 1) * KEY_BYTES)
    body = bytearray(sums.server.keys[client][: KEYS_BYTES - SIGNATURE_BYTES])
    body[at] = key
    signer = SigningKey.from_secret(f"identity {client}".encode())
    return bytes(body) + signer.sign(sums.plan._of(client) + body)


def test_keys_of_another_sum_are_refused() -> None:
    """A replay: signed by the right client, for the round before."""
    sums = InMemory(4, 3)
    sums.run("keys")
    before = make_client(make_plan(4, 3, number=2), 1).keys()
    with pytest.raises(MessageError, match="client 1 are not signed by it"):
        sums.clients[0].share({**sums.server.keys, 1: before})


def test_a_client_does_not_go_on_without_its_own_keys() -> None:
    sums = InMemory(4, 3)
    sums.run("keys")
    own_of_an_earlier_try = make_client(sums.plan, 0, seed=1).keys()
    for keys in (
        {n: sums.server.keys[n] for n in (1, 2, 3)},
        {**sums.server.keys, 0: own_of_an_earlier_try},
    ):
        with pytest.raises(MessageError, match="not those that it sent"):
            sums.clients[0].share(keys)


def test_one_that_takes_part_as_several_is_refused() -> None:
    sums = InMemory(4, 3)
    sums.run("keys")
    key = SigningKey.from_secret(b"identity 2")
    double = replace(make_client(sums.plan, 3, seed=9), key=key)
    with pytest.raises(MessageError, match="takes part as several"):
        sums.clients[0].share({**sums.server.keys, 3: double.keys()})


def test_strangers_are_not_called() -> None:
    sums = InMemory(4, 3)
    sums.run("keys")
    keys = {**sums.server.keys, 4: sums.server.keys[3]}
    with pytest.raises(MessageError, match="were not called"):
        sums.clients[0].share(keys)


def test_shares_that_were_changed_or_are_for_another_are_refused() -> None:
    sums = InMemory(4, 3)
    sums.run("share")
    sent = sums.server.shares_for(0)
    changed = sent[1][:-1] + bytes([sent[1][-1] ^ 1])
    for wrong in (changed, sums.server.shares[1][2], sums.server.shares[2][0]):
        with pytest.raises(MessageError, match="what client 1 sealed for this one can"):
            sums.clients[0].receive({**sent, 1: wrong})


WRONG = bytes(SHARE_BYTES - 1) + b"\1"


def test_a_wrong_share_is_found_before_there_is_a_wrong_total() -> None:
    """With one fewer who open, there is none to take in its place."""
    for gone in ({"open": [2]}, {"mask": [2]}):
        sums = InMemory(4, 3, **gone)
        sums.run()
        sums.server._opened[0][3] = WRONG
        with pytest.raises(MessageError, match=r"client 3 sealed wrong .* or too many"):
            sums.server.total()


@pytest.mark.parametrize("liars", [[0], [5], [3], [0, 4], [1, 2, 5]])
def test_wrong_shares_are_left_out_where_enough_are_right_and_named(
    liars: list[int],
) -> None:
    for gone, count in (({}, 10), ({"mask": [8]}, 10)):
        sums = InMemory(count, 6, **gone)
        sums.run()
        for liar in liars:
            sums.server._opened[liar] = dict.fromkeys(sums.server.shares, WRONG)
        members = [n for n in range(count) if n not in gone.get("mask", [])]
        assert np.array_equal(sums.server.total(), sums.plain(members))
        assert sorted(sums.server.unfit) == liars
        # Once it is known, it is not asked again.
        assert sums.server.unfit[liars[0]][0] == 0


def test_whoever_opened_what_fits_is_not_named() -> None:
    sums = InMemory(7, 4)
    sums.run()
    sums.server._opened[2][5] = WRONG
    assert np.array_equal(sums.server.total(), sums.plain(range(7)))
    assert sums.server.unfit == {2: [5]}


def test_who_sealed_wrong_shares_for_all_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = SumClient.pairs
    sums = InMemory(5, 3)
    sums.run("share")
    made, other = sums.clients[4].pairs(), sums.clients[3].pairs()
    assert made != other
    sums = InMemory(5, 3)
    sums.run("keys")
    monkeypatch.setattr(
        SumClient, "pairs", lambda self: other if self.client == 4 else honest(self)
    )
    sums.run_on("share")
    with pytest.raises(MessageError, match="client 4 sealed wrong shares"):
        sums.server.total()


def test_a_server_takes_no_shares_for_others_and_no_other_signature() -> None:
    sums = InMemory(4, 3)
    sums.run("keys")
    shares = sums.clients[0].share(sums.server.keys).sealed()
    for wrong in (dict(list(shares.items())[1:]), {**shares, 0: b""}):
        with pytest.raises(MessageError, match="not for all others"):
            sums.server.take_shares(0, wrong)
    for n in range(4):
        sums.share(n)
    for n in range(4):
        sums.mask(n)
    signed = sums.clients[0].key.sign(agreement(b"", range(4), []))
    with pytest.raises(MessageError, match="did not sign who is in"):
        sums.server.take_signature(0, signed)


def test_no_single_summand_is_in_what_reaches_the_server() -> None:
    """Nor one with its own mask opened, which the pair masks still cover."""
    sums = InMemory(5, 3, mask=[2])
    sums.run()
    reached = b"".join(sums.seen)
    for n, client in enumerate(sums.clients):
        own = sums.plan.own_mask(client.secret("own mask"))
        assert sums.values[n].tobytes() not in reached
        assert (sums.values[n] + own).astype(np.uint32).tobytes() not in reached
    assert np.array_equal(sums.server.total(), sums.plain([0, 1, 3, 4]))


def test_one_who_is_late_stays_masked_though_its_pair_masks_are_open() -> None:
    """The reason for the second mask: the server says that it dropped out, and has its
    summand."""
    sums = InMemory(5, 3, mask=[2])
    sums.run()
    late = sums.clients[2].receive(sums.server.shares_for(2))
    masked = late.masked(sums.values[2])
    pairs = np.zeros(LENGTH, np.uint32)
    for other in (0, 1, 3, 4):
        theirs = sums.clients[other].public[2].masking
        private = sums.clients[other].secret("masking")
        pairs += sums.plan.pair_mask(private, other, theirs, 2)
    unmasked = masked + pairs
    assert not np.array_equal(unmasked, sums.values[2])
    assert np.array_equal(
        unmasked - sums.plan.own_mask(late.secret("own mask")), sums.values[2]
    )


def test_masks_differ_from_sum_to_sum_and_from_seed_to_seed() -> None:
    first, second = make_plan(3, 2), make_plan(3, 2, number=4)
    own = bytes(32)
    assert not np.array_equal(first.own_mask(own), second.own_mask(own))
    assert make_client(first, 0).keys() == make_client(first, 0).keys()
    assert make_client(first, 0).keys() != make_client(first, 0, seed=1).keys()
    plans = (first, second, make_plan(3, 3), make_plan(3, 2, order="another"))
    assert len({plan.digest for plan in plans}) == 4


def test_who_was_asked_something_else_is_in_no_sum_with_the_others() -> None:
    """Each has the digest of what came to it in its keys; the server's word is none."""
    sums = InMemory(4, 3)
    sums.run("keys")
    other = make_client(make_plan(4, 3, order="another"), 1).keys()
    with pytest.raises(
        MessageError, match="client 1 are not signed by it for this order"
    ):
        sums.clients[0].share({**sums.server.keys, 1: other})


def test_what_was_refused_and_what_was_asked_twice_changes_no_answer() -> None:
    """A client that starts anew for every question gives the same."""
    sums = InMemory(4, 3)
    sums.run("share")
    client = sums.clients[0]
    sent = sums.server.shares_for(0)
    with pytest.raises(MessageError, match="what client 3 sealed for this one"):
        client.receive({**sent, 3: bytes(len(sent[3]))})
    fewer = {n: sent[n] for n in (2, 3)}
    fresh = make_client(sums.plan, 0).share(sums.server.keys)
    masked = [c.receive(fewer).masked(sums.values[0]) for c in (client, fresh)]
    assert np.array_equal(*masked)
    sums.run_on("mask", "agree")
    asked = sums.clients[0]
    again = asked.share(sums.server.keys)  # a late copy of a message
    assert again.sealed() == fresh.sealed()
    opened = [asked.open(sums.server.signatures) for _ in range(2)]
    assert opened[0] == opened[1]
    assert opened[0].keys() == set(range(4))
