"""Names and labels are legal, the same for the same job, and different for different ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipelines.spec.naming import attempt_name, label_value, partition_slug, run_key

DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z")
LABEL = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")

texts = st.text(max_size=120)
five = st.tuples(texts, texts, texts, texts, texts)


def key(parts: tuple[str, str, str, str, str]) -> str:
    name, location, logical_run, step, partition = parts
    return run_key(name, location=location, logical_run=logical_run, step=step, partition=partition)


@given(five, st.integers(1, 999))
def test_names_are_legal(parts, number):
    """Case A1: whatever the asset and partition are called, KubeRay takes the name."""
    assert DNS_1035.match(key(parts))
    assert len(key(parts)) <= 42
    assert DNS_1035.match(attempt_name(key(parts), number))
    assert len(attempt_name(key(parts), number)) <= 47


@given(five, five)
def test_different_jobs_have_different_names(one, other):
    """Case A1: two jobs share a key only if all five of their texts are the same."""
    assert (key(one) == key(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "", "", "", "x" * 50 + "1"), ("a", "", "", "", "x" * 50 + "2")),
        (("a", "", "", "", "DE"), ("a", "", "", "", "de")),
        (("a", "", "", "", "a/b"), ("a", "", "", "", "a|b")),
        (("a", "", "", "b", "c"), ("a", "", "b", "", "c")),
    ],
    ids=["late difference", "case", "odd characters", "shifted"],
)
def test_near_collisions(one, other):
    """Case G4: keys that differ only where a name can't show it still differ."""
    assert key(one) != key(other)


def test_name_can_be_read():
    """The name says what it is before the hash makes it unique, and stays the same for ever."""
    parts = ("ads_model", "ml_pipelines", "4f1c", "ads_model", "2019-11-24")
    assert key(parts) == "ads-model-2019-11-24-5d29884e0c"


@pytest.mark.parametrize(
    ("name", "start"),
    [("2nd try", "job-2nd-try-"), ("日本", "job-"), ("Été", "ete-"), ("a" * 80, "a" * 31 + "-")],
    ids=["digit first", "no ASCII", "accents", "long"],
)
def test_odd_names(name, start):
    """What can't stand in a name is left to the hash."""
    assert key((name, "", "", "", "")).startswith(start)


@pytest.mark.parametrize("number", [0, 1000])
def test_attempts_are_counted_from_one(number):
    """An attempt's number has its bounds, so that the name has."""
    with pytest.raises(ValueError):
        attempt_name("a", number)


@given(texts)
def test_labels_are_legal(text):
    """Case A4: any text becomes a legal label."""
    assert LABEL.match(label_value(text))
    assert len(label_value(text)) <= 63


@given(texts, texts)
def test_labels_stay_distinguishable(one, other):
    """Case A4: two texts never share a label."""
    assert (label_value(one) == label_value(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ads_model", "ads_model"),
        ("2019-11-24", "2019-11-24"),
        ("", ""),
        ("user+x@org.com", "user-x-org.com-4fd9c36a2c"),
        ("日本語", "0ba56488e1"),
        ("a" * 62 + "_" + "b" * 7, "a" * 52 + "-d743875c23"),
    ],
    ids=["plain", "date", "empty", "e-mail", "no ASCII", "long with _ as 63rd"],
)
def test_label_examples(text, value):
    """Case A4: a legal text is its own label, another keeps what can be read of it."""
    assert label_value(text) == value


@given(texts)
def test_partition_slug_is_short(partition):
    """A partition's readable part leaves room for the name, and may be empty."""
    slug = partition_slug(partition)
    assert len(slug) <= 12
    assert re.fullmatch(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)?", slug)
