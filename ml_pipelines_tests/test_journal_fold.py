"""What counts in a journal and what is void: every rule of the fold, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from ml_pipelines.errors import JournalCorrupt
from ml_pipelines.journal.entries import Entry, Record, Undecodable, decode, encode
from ml_pipelines.journal.fold import JournalState, fold

Row = tuple[str, str, int, dict[str, Any]]

BIRTH: Row = ("birth", "loop", 0, {"spec": {"a": 1}, "name": "train", "owes_result": True})
CLAIM: Row = ("claim", "loop", 0, {})


def attempt(number: int, *, claim: int = 2) -> Row:
    return ("attempt", "loop", claim, {"number": number, "name": f"j-{number}"})


def attempt_end(number: int, *, claim: int = 2) -> Row:
    return ("attempt_end", "loop", claim, {"number": number, "verdict": {"cls": "INFRA"}})


def seat(number: int, cluster: str = "c") -> Row:
    return ("claim", "driver", 0, {"attempt": number, "cluster": cluster})


def commit(claim: int, what: str = "checkpoint") -> Row:
    return ("commit", "driver", claim, {"what": what, "path": "p", "sha256": "s", "data": {"n": 1}})


def entry(number: int, row: Row, voids: tuple[int, ...] = ()) -> Entry:
    kind, role, claim, data = row
    return Entry(number, kind, role, "w", f"n{number}", claim, f"t{number}", data, voids)


def of(*rows: Row) -> JournalState:
    return fold("k", [entry(n, row) for n, row in enumerate(rows, start=1)])


def void(state: JournalState) -> list[int]:
    return [number for number, _ in state.void]


END: Row = ("end", "loop", 2, {"phase": "FAILED", "result": {"auc": 1}, "durations": {"run": 3}})
CANCEL: Row = ("cancel", "loop", 0, {"reason": "why", "by": "me"})

# What lies before, the entry in question, and a word of why it is void ("" where it counts).
START = [BIRTH, CLAIM]
OPEN = [*START, attempt(1)]
DRIVEN = [*OPEN, seat(1)]
ENDED = [*DRIVEN, END]
RULES: list[tuple[str, list[Row], Row, str]] = [
    ("birth comes first", [], BIRTH, ""),
    ("nothing before the birth", [], CLAIM, "before the birth"),
    ("one birth only", START, BIRTH, "born already"),
    ("loop may always be claimed", [*START, CLAIM], CLAIM, ""),
    ("attempt under the claim", START, attempt(1), ""),
    ("attempt under no claim", [BIRTH], attempt(1, claim=0), "does not hold"),
    ("attempt under a superseded claim", [*START, CLAIM], attempt(1), "does not hold"),
    (
        "attempt under a released claim",
        [*START, ("release", "loop", 2, {})],
        attempt(1),
        "was released",
    ),
    ("second attempt beside an open one", OPEN, attempt(2), "attempt 1 is open"),
    ("same attempt again", [*OPEN, attempt_end(1)], attempt(1), "next attempt is 2"),
    ("attempt number skipped", START, attempt(2), "next attempt is 1"),
    ("attempt without a number", START, ("attempt", "loop", 2, {}), "next attempt is 1"),
    ("next attempt after the end of one", [*OPEN, attempt_end(1)], attempt(2), ""),
    ("attempt after a cancel", [*START, CANCEL], attempt(1, claim=3), "cancelled"),
    ("end of an attempt that is not open", OPEN, attempt_end(2), "attempt 2 is not open"),
    ("end of an attempt twice", [*OPEN, attempt_end(1)], attempt_end(1), "not open"),
    ("uid of the open attempt", OPEN, ("created", "loop", 2, {"number": 1, "uid": "u"}), ""),
    ("uid of another attempt", OPEN, ("created", "loop", 2, {"number": 2}), "not open"),
    ("driver of the open attempt", OPEN, seat(1), ""),
    ("driver before any attempt", START, seat(1), "not open"),
    ("driver of an ended attempt", [*OPEN, attempt_end(1)], seat(1), "not open"),
    ("driver of no attempt", OPEN, ("claim", "driver", 0, {}), "not open"),
    ("commit under the claim", DRIVEN, commit(4), ""),
    ("commit under no claim", DRIVEN, commit(0), "does not hold"),
    ("commit of an earlier incarnation", [*DRIVEN, seat(1)], commit(4), "does not hold"),
    ("commit after its attempt's end", [*DRIVEN, attempt_end(1)], commit(4), "does not hold"),
    (
        "commit after the next attempt began",
        [*DRIVEN, attempt_end(1), attempt(2)],
        commit(4),
        "does not hold",
    ),
    ("commit after its release", [*DRIVEN, ("release", "driver", 4, {})], commit(4), "released"),
    ("commit under the loop's claim", DRIVEN, commit(2), "does not hold"),
    ("commit by the loop", DRIVEN, ("commit", "loop", 2, {}), "that we know"),
    ("attempt by the driver", DRIVEN, ("attempt", "driver", 4, {"number": 2}), "that we know"),
    ("kind from the future", START, ("lineage", "loop", 2, {}), "that we know"),
    ("role from the future", START, ("note", "auditor", 2, {}), "that we know"),
    ("commit after the end", ENDED, commit(4), "has ended"),
    ("attempt after the end", ENDED, attempt(2), "has ended"),
    ("cancel after the end", ENDED, CANCEL, "has ended"),
    ("second end", ENDED, END, "has ended"),
    ("driver after the end", ENDED, seat(1), "has ended"),
    ("note after the end", ENDED, ("note", "loop", 2, {}), "has ended"),
    ("ledger after the end", ENDED, ("ledger", "loop", 2, {"pod": "x"}), ""),
    ("logs after the end", ENDED, ("logs", "loop", 2, {"number": 1, "url": "u"}), ""),
    ("clean-up after the end", ENDED, ("cleaned", "loop", 2, {}), ""),
    ("release after the end", ENDED, ("release", "loop", 2, {}), ""),
    ("driver's release after the end", ENDED, ("release", "driver", 4, {}), ""),
    ("who cleans up claims the loop", ENDED, CLAIM, ""),
    (
        "clean-up under a superseded claim",
        [*ENDED, CLAIM],
        ("cleaned", "loop", 2, {}),
        "does not hold",
    ),
    ("logs of no attempt", OPEN, ("logs", "loop", 2, {"url": "u"}), "names no attempt"),
]


@pytest.mark.parametrize(
    ("before", "row", "why"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_rule(before: list[Row], row: Row, why: str) -> None:
    """An entry counts or is void by what stands before it, and the reason is told."""
    state = of(*before, row)
    assert void(of(*before)) == []
    if why:
        assert void(state) == [len(before) + 1]
        assert why in state.void[0][1]
    else:
        assert void(state) == []


def test_void_entry_changes_nothing() -> None:
    """The state after a void entry is the one before, but for its number and the note of it."""
    before, after = of(*ENDED), of(*ENDED, commit(4, "result"))
    assert after.commits == before.commits == ()
    assert (after.ended, after.attempts, after.driver) == (
        before.ended,
        before.attempts,
        before.driver,
    )
    assert (before.tail, after.tail) == (5, 6)


def test_state_of_a_whole_life() -> None:
    """Case B11: two attempts, three drivers; what each committed while it held stays."""
    state = of(
        *OPEN,
        ("created", "loop", 2, {"number": 1, "uid": "u1"}),
        seat(1, "c1"),
        commit(5),
        seat(1, "c2"),
        commit(7),
        commit(5),  # the evicted incarnation, late
        attempt_end(1),
        attempt(2),
        commit(7),  # the first attempt, late
        seat(2, "c3"),
        commit(13, "result"),
        ("note", "loop", 2, {"number": 2, "phase": "RUNNING", "sentence": "runs"}),
        END,
    )
    assert state.birth is not None
    assert (state.birth.name, state.birth.spec, state.birth.created_at) == ("train", {"a": 1}, "t1")
    assert state.loop is not None
    assert (state.loop.number, state.loop.writer) == (2, "w")
    assert [(a.number, a.name, a.uid, a.ended) for a in state.attempts] == [
        (1, "j-1", "u1", True),
        (2, "j-2", "", True),
    ]
    assert state.attempts[0].verdict == {"cls": "INFRA"}
    assert [(c.entry, c.attempt, c.incarnation) for c in state.commits] == [
        (6, 1, 1),
        (8, 1, 2),
        (14, 2, 1),
    ]
    assert state.result is not None
    assert (state.result.entry, state.result.path, state.result.data) == (14, "p", {"n": 1})
    assert state.latest("checkpoint") == state.commits[1]
    assert state.driver is not None
    assert (state.driver.cluster, state.driver.incarnation) == ("c3", 1)
    assert state.standing == {"number": 2, "phase": "RUNNING", "sentence": "runs"}
    assert state.ended is not None
    assert (state.ended.phase, state.ended.result, state.ended.durations) == (
        "FAILED",
        {"auc": 1},
        {"run": 3},
    )
    assert state.open_attempt is None
    assert void(state) == [9, 12]


def test_cancel_claims_the_loop_at_once() -> None:
    """Whoever held it before acts no more; the first cancel's words are kept."""
    second: Row = ("cancel", "loop", 0, {"reason": "again", "by": "you"})
    state = of(*OPEN, CANCEL, attempt_end(1), second, attempt_end(1, claim=6))
    assert void(state) == [5]
    assert state.cancelled is not None
    assert (state.cancelled.reason, state.cancelled.by, state.cancelled.delete) == (
        "why",
        "me",
        True,
    )
    assert state.loop is not None
    assert state.loop.number == 6


def test_history_is_kept_in_order() -> None:
    """Ledger lines, logs by attempt, and the clean-up."""
    state = of(
        *OPEN,
        ("ledger", "loop", 2, {"pod": "a"}),
        ("ledger", "loop", 2, {"pod": "b"}),
        ("logs", "loop", 2, {"number": 1, "url": "u", "bytes": 3}),
        ("cleaned", "loop", 2, {}),
    )
    assert [line["pod"] for line in state.ledger] == ["a", "b"]
    assert state.logs == {1: {"number": 1, "url": "u", "bytes": 3}}
    assert state.cleaned


class TestUnreadable:
    """Entries that can't be decoded, at the end and in the middle."""

    BAD = Undecodable(3, "cut")

    def test_void_at_the_end(self) -> None:
        """Half an entry that a dying writer left changes nothing; its number is taken."""
        state = fold("k", [entry(1, BIRTH), entry(2, CLAIM), self.BAD, Undecodable(4, "cut")])
        assert state.tail == 4
        assert void(state) == [3, 4]

    def test_void_where_the_successor_says_so(self) -> None:
        """Whoever writes next names what could not be read, and then counts as ever."""
        records: list[Record] = [entry(1, BIRTH), entry(2, CLAIM), self.BAD, Undecodable(4, "cut")]
        state = fold("k", [*records, entry(5, attempt(1), voids=(3, 4))])
        assert [a.number for a in state.attempts] == [1]

    @pytest.mark.parametrize("voids", [(), (2,), (4,)], ids=["none", "another", "itself"])
    def test_corrupt_in_the_middle(self, voids: tuple[int, ...]) -> None:
        """An entry that can't be read and was not when its successor was written is damage."""
        records: list[Record] = [entry(1, BIRTH), entry(2, CLAIM), self.BAD]
        with pytest.raises(JournalCorrupt, match=r"entry 3 can't be read, and entry 4"):
            fold("k", [*records, entry(4, attempt(1), voids)])

    def test_voided_though_readable(self) -> None:
        """The successor decided without it; so it counts for nobody."""
        state = fold(
            "k",
            [entry(1, BIRTH), entry(2, CLAIM), entry(3, attempt(1)), entry(4, attempt(1), (3,))],
        )
        assert void(state) == [3]
        assert [a.opened_at for a in state.attempts] == ["t4"]

    def test_what_is_voided_voids_nothing(self) -> None:
        """Entry 4 took 3 for unreadable and was not read itself; who wrote 5 had read 3."""
        records = [
            entry(1, BIRTH),
            entry(2, CLAIM),
            entry(3, attempt(1)),
            entry(4, attempt(1), (3,)),
            entry(5, attempt_end(1), (4,)),
        ]
        state = fold("k", records)
        assert void(state) == [4]
        assert [(a.opened_at, a.ended) for a in state.attempts] == [("t3", True)]

    def test_only_right_before_can_be_voided(self) -> None:
        """Nobody voids what somebody else has already built upon."""
        records = [entry(1, BIRTH), entry(2, CLAIM), entry(3, attempt(1))]
        state = fold("k", [*records, entry(4, seat(1), voids=(2, 1))])
        assert void(state) == []


def test_gap_is_an_error() -> None:
    """A journal without its entry 2 is damaged, not shorter."""
    with pytest.raises(JournalCorrupt, match="entry 2 is missing"):
        fold("k", [entry(1, BIRTH), entry(3, CLAIM)])


class TestBytes:
    """How an entry is written and read."""

    def test_round_trip(self) -> None:
        """What was encoded is decoded, nested data and all."""
        one = entry(7, ("note", "loop", 2, {"deep": {"list": [1, None, "ü"]}}), voids=(6,))
        assert decode(7, encode(one)) == one

    def test_nan_is_refused(self) -> None:
        """Case J1: an entry is strict JSON."""
        with pytest.raises(ValueError, match="JSON compliant"):
            encode(entry(1, ("note", "loop", 2, {"loss": float("nan")})))

    def test_unknown_fields_are_ignored(self) -> None:
        """A newer writer may say more."""
        raw = encode(entry(1, BIRTH)).replace(b'{"number"', b'{"later":1,"number"', 1)
        assert decode(1, raw) == entry(1, BIRTH)

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"null",
            b"[]",
            b"\xff\xfe",
            encode(entry(1, BIRTH))[:-1],
            encode(entry(2, BIRTH)),
            encode(entry(1, BIRTH)).replace(b'"claim":0', b'"claim":"0"'),
            encode(entry(1, BIRTH)).replace(b'"claim":0', b'"claim":true'),
            encode(entry(1, BIRTH)).replace(b'"nonce"', b'"once"'),
            b'{"number":1,' + b"[" * 100_000,
        ],
        ids=[
            "empty",
            "null",
            "list",
            "no text",
            "cut",
            "another number",
            "claim is text",
            "claim is bool",
            "no nonce",
            "nested without end",
        ],
    )
    def test_undecodable(self, raw: bytes) -> None:
        """Whatever is not an entry of this number is told apart, never guessed at."""
        assert isinstance(decode(1, raw), Undecodable)
