"""What can go wrong, as one tree; every error says what to do next.

MlPipelinesError
├── InvalidInput          the user wrote something that can't be meant: path, value, remedy
│   ├── InvalidData       a partition, checkpoint or model that can't be used as it lies there
│   └── DoesNotFit        the machine or the pool is too small for what was asked
├── Refused               well-formed, but not allowed now: a name taken, a job claimed by another
├── StorageError          run storage or the lake; infrastructure, never the user's fault
│   ├── StorageUnavailable    no answer, or an answer that may change: try again
│   ├── StorageDenied         401 or 403: it answers, but not to us
│   ├── NotFound              the object does not exist
│   └── AlreadyExists         create-if-absent found the name taken
├── JournalError
│   ├── Superseded        a newer claim took over: stop acting
│   ├── Undecided         storage did not say whether the entry was written: decide nothing
│   └── JournalCorrupt    a gap, or an entry in the middle that can't be read
├── BackendError
│   ├── BackendUnavailable    temporary: keep watching, never kill
│   └── BackendRefused        permanent: the backend won't take this manifest
│       └── QuotaUsedUp       it would, and there was no room for it for all the time we waited
└── JobFailed             a job ended without success: its verdict and evidence
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_pipelines.job.verdict import Verdict


class MlPipelinesError(Exception):
    """Root of every error that this package raises on purpose.

    `remedy` is the next thing to do, in the imperative, or empty. `exit_code` is the command
    line's.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())

    def __reduce__(self) -> tuple[object, ...]:
        # Ray carries errors from process to process; a subclass's signature is none of pickle's.
        return _restored, (type(self), self.args, self.__dict__)


class InvalidInput(MlPipelinesError):
    """One field of what the user wrote can't be meant: nothing has been created.

    `path` is the field's (`cluster.workers[0].memory`), `value` what was written there.
    """

    exit_code = 2

    def __init__(self, path: str, value: object, problem: str, *, remedy: str = "") -> None:
        self.path = path
        self.value = value
        self.problem = problem
        super().__init__(f"{path}: {_shown(value)} {problem}.", remedy=remedy)


class InvalidData(InvalidInput):
    """A partition, checkpoint or model that can't be used as it lies there."""


class DoesNotFit(InvalidInput):
    """The machine or the pool is too small for what the user asked for by number."""


class Refused(MlPipelinesError):
    """Well-formed, but not allowed now: a name taken by others, a job somebody else holds."""

    exit_code = 3


class StorageError(MlPipelinesError):
    """The lake or run storage failed us: infrastructure, never the user's fault."""

    exit_code = 4


class StorageUnavailable(StorageError):
    """No answer, or one that may change: try again."""


class StorageDenied(StorageError):
    """Storage answered 401 or 403."""


class NotFound(StorageError):
    """No object of this name."""


class AlreadyExists(StorageError):
    """Create-if-absent found the name taken."""


class JournalError(MlPipelinesError):
    """The record of a job can't be written or read as it must be."""

    exit_code = 4


class Superseded(JournalError):
    """A newer claim took over: whoever sees this stops acting at once."""


class Undecided(JournalError):
    """Storage did not say whether the entry was written: nothing may be acted upon."""


class JournalCorrupt(JournalError):
    """A gap in the numbers, or an entry in the middle that can't be read."""


class BackendError(MlPipelinesError):
    """The backend (KubeRay or the local Ray) failed us."""

    exit_code = 4


class BackendUnavailable(BackendError):
    """Temporary: keep watching; a job is never killed because we can't see it."""


class BackendRefused(BackendError):
    """Permanent: the backend won't take this manifest."""


class QuotaUsedUp(BackendRefused):
    """The manifest is in order; a quota stayed full for as long as we waited."""


class JobFailed(MlPipelinesError):
    """A job ended without success; `verdict` says why, with its evidence."""

    def __init__(self, run_key: str, verdict: Verdict, *, tail: tuple[str, ...] = ()) -> None:
        self.run_key = run_key
        self.verdict = verdict
        self.tail = tail
        super().__init__(f"job {run_key}: {verdict.sentence}", remedy=verdict.remedy)


def _restored(
    kind: type[MlPipelinesError], args: tuple[object, ...], state: dict[str, object]
) -> MlPipelinesError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
