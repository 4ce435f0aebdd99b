"""Names and labels: deterministic, legal in Kubernetes, and different where their sources are."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata

# KubeRay allows a RayJob 47 characters; `-a` and three digits of the attempt come on top of ours.
RUN_KEY_LENGTH = 42
CLUSTER_NAME_LENGTH = 53
LABEL_LENGTH = 63
PREFIX = "ml-pipelines.dev/"

_HASH_LENGTH = 10
_PARTITION_LENGTH = 12
_LAST_ATTEMPT = 999
_ATTEMPT = re.compile(r"(.+)-a\d+")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def run_key(name: str, *, location: str, logical_run: str, step: str, partition: str) -> str:
    """The identity of a job: the same five texts give the same key, any other another one.

    At most 42 characters, a DNS-1035 label: a readable part and ten digits of a hash of all five.
    """
    day = partition_slug(partition)
    room = RUN_KEY_LENGTH - _HASH_LENGTH - 1 - (len(day) + 1 if day else 0)
    readable = _slug(name, room) or "job"
    if not readable[0].isalpha():
        readable = _slug(f"job-{readable}", room)
    digest = _digest(name, location, logical_run, step, partition)
    return "-".join(part for part in (readable, day, digest) if part)


def attempt_name(run_key: str, number: int) -> str:
    """The RayJob's name of one attempt, at most 47 characters; attempts count from 1."""
    if not 1 <= number <= _LAST_ATTEMPT:
        raise ValueError(f"attempt {number} is not within 1 and {_LAST_ATTEMPT}")
    return f"{run_key}-a{number}"


def run_key_of(name: str) -> str:
    """The run key of an attempt's name; empty for a name that `attempt_name` can't have made."""
    found = _ATTEMPT.fullmatch(name)
    return found[1] if found else ""


def partition_slug(partition: str) -> str:
    """A partition key made readable in a name, at most 12 characters; it may collide."""
    return _slug(partition, _PARTITION_LENGTH)


def label_value(text: str) -> str:
    """`text` as a label's value: itself where legal, else a readable part and a hash of it all.

    At most 63 characters. Keep the full text in an annotation where the two differ.
    """
    if not text or (len(text) <= LABEL_LENGTH and _LABEL.fullmatch(text)):
        return text
    room = LABEL_LENGTH - _HASH_LENGTH - 1
    readable = re.sub(r"[^-A-Za-z0-9_.]+", "-", _ascii(text))[:room].strip("-_.")
    return "-".join(part for part in (readable, _digest(text)) if part)


def label_key(name: str) -> str:
    """The label of ours for a name such as `code_location`: `ml-pipelines.dev/code-location`."""
    return PREFIX + name.replace("_", "-")


def is_dns_label(text: str, longest: int) -> bool:
    """Whether `text` is a DNS-1035 label of at most so many characters."""
    return len(text) <= longest and _DNS_1035.fullmatch(text) is not None


def _slug(text: str, longest: int) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _ascii(text).lower()).strip("-")[:longest].rstrip("-")


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _digest(*parts: str) -> str:
    # JSON keeps ("a", "b-c") and ("a-b", "c") apart.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_HASH_LENGTH]
