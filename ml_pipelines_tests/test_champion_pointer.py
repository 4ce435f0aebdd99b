"""The champion moves in one step, from the one that it was judged against, to a real result."""

from __future__ import annotations

import threading

import pytest

from ml_pipelines.clock import FakeClock
from ml_pipelines.errors import JournalCorrupt, Refused, Superseded
from ml_pipelines.journal.entries import Draft
from ml_pipelines.journal.pointer import Champion, Pointer, named_models
from ml_pipelines.journal.record import Journal
from ml_pipelines.storage import Store
from ml_pipelines_tests.faulty_store import Fault, FaultyStore


def trained(store: Store, run_key: str, partition: str = "2026-01-01") -> Champion:
    """A job that committed a result: what may become the champion."""
    journal = Journal(store, run_key, writer="w", clock=FakeClock())
    journal.append(lambda _: Draft("birth", {}), role="loop", claim=0)
    loop = journal.claim_loop()
    journal.append(lambda _: Draft("attempt", {"number": 1}), role="loop", claim=loop.number)
    driver = journal.claim_driver(1, "c")
    commit = journal.commit(driver.number, "result", path="r.json", sha256="s")
    url = store.child_url(f"jobs/{run_key}/model")
    return Champion(run_key, commit.entry, partition, url, "v1", {"auc": 0.7})


def test_no_champion_at_first(store: Store) -> None:
    """A model that nobody promoted has none."""
    assert Pointer(store, "m").current() is None


def test_promotions_follow_each_other(store: Store, clock: FakeClock) -> None:
    """Each takes the number after the one that it was judged against."""
    pointer = Pointer(store, "m", clock=clock)
    first = pointer.promote(trained(store, "one"), expecting=0)
    assert first.number == 1
    assert Pointer(store, "m").current() == first
    second = pointer.promote(trained(store, "two"), expecting=1)
    assert (second.number, second.run_key, second.metrics) == (2, "two", {"auc": 0.7})
    assert [each.run_key for each in Pointer(store, "m").history()] == ["one", "two"]
    assert named_models(store) == ["m"]


@pytest.mark.parametrize("expecting", [0, 2], ids=["an earlier one", "one that never was"])
def test_judged_against_another_is_superseded(store: Store, expecting: int) -> None:
    """The gate must run again; the champion stays."""
    pointer = Pointer(store, "m")
    champion = pointer.promote(trained(store, "one"), expecting=0)
    with pytest.raises(Superseded, match=f"is number 1 now, not {expecting}"):
        pointer.promote(trained(store, "two"), expecting=expecting)
    assert pointer.current() == champion


def test_one_of_two_that_promote_at_once(store: Store) -> None:
    """Both were judged against the same champion: one becomes it, the other is told."""
    challengers = [trained(store, name) for name in ("one", "two")]
    outcomes: list[object] = []

    def promote(challenger: Champion) -> None:
        try:
            outcomes.append(Pointer(store, "m").promote(challenger, expecting=0))
        except Superseded as error:
            outcomes.append(error)

    threads = [threading.Thread(target=promote, args=(each,)) for each in challengers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [each for each in outcomes if isinstance(each, Champion)]
    assert Pointer(store, "m").current() == won
    assert len(outcomes) == 2


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.TWICE, Fault.LATE, Fault.LIES_YES])
def test_promoted_once_whatever_storage_says(store: Store, fault: Fault) -> None:
    """An answer that is late, twice, wrong or missing leaves one promotion, and it is known."""
    challenger = trained(store, "one")
    faulty = FaultyStore(store)
    pointer = Pointer(faulty, "m", clock=FakeClock())
    reads_of_its_journal = 1 + challenger.entry
    faulty.script.extend([Fault.FINE] * (reads_of_its_journal + 1) + [fault])
    champion = pointer.promote(challenger, expecting=0)
    faulty.deliver()
    assert Pointer(store, "m").history() == [champion]


def test_names_only_a_result_that_counts(store: Store) -> None:
    """No journal, another entry, or an entry that is no result: refused, and nothing written."""
    real = trained(store, "one")
    for fake in (
        Champion("nobody", real.entry, "", "", ""),
        Champion("one", real.entry + 1, "", "", ""),
        Champion("one", 1, "", "", ""),
    ):
        with pytest.raises(Refused, match="no result that counts"):
            Pointer(store, "m").promote(fake, expecting=0)
    assert Pointer(store, "m").current() is None


def test_half_a_promotion_is_none(store: Store) -> None:
    """A writer died: the champion stays, and the next promotion takes the number after."""
    pointer = Pointer(store, "m", clock=FakeClock())
    first = pointer.promote(trained(store, "one"), expecting=0)
    store.create("models/m/champion/00000002.json", b'{"number":2,"kind":"prom')
    assert Pointer(store, "m", clock=FakeClock()).current() == first
    third = pointer.promote(trained(store, "two"), expecting=1)
    assert third.number == 3
    assert Pointer(store, "m", clock=FakeClock()).history() == [first, third]


def test_damage_in_the_middle_is_an_error(store: Store) -> None:
    """Which model serves is never guessed."""
    pointer = Pointer(store, "m", clock=FakeClock())
    for expecting, name in enumerate(("one", "two", "three")):
        pointer.promote(trained(store, name), expecting=expecting)
    store.put("models/m/champion/00000002.json", b"x")
    with pytest.raises(JournalCorrupt, match="entry 2"):
        Pointer(store, "m", clock=FakeClock()).current()
    store.delete("models/m/champion/00000002.json")
    with pytest.raises(JournalCorrupt, match=r"00000002\.json is missing"):
        Pointer(store, "m", clock=FakeClock()).current()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b"])
def test_odd_model_name_is_refused(store: Store, name: str) -> None:
    """A name is one folder's."""
    from ml_pipelines.errors import InvalidInput

    with pytest.raises(InvalidInput, match="model"):
        Pointer(store, name)
