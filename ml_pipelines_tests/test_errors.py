"""The error tree is drawn as it is, and each error says what to do next."""

from __future__ import annotations

import inspect
import re

import pytest

from ml_pipelines import errors
from ml_pipelines.errors import InvalidInput, JobFailed, MlPipelinesError
from ml_pipelines.job.verdict import Verdict, VerdictClass

CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MlPipelinesError)
}


def drawn() -> dict[str, str]:
    """Each class in the drawing, with the class that it hangs from."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?:\s{2,}|$)", line)
        if not found or found[2] not in CLASSES:
            continue
        depth = len(found[1])
        while above and above[-1][0] >= depth:
            above.pop()
        parents[found[2]] = above[-1][1] if above else "Exception"
        above.append((depth, found[2]))
    return parents


def test_tree_is_drawn_as_it_is():
    """The drawing in the module's docstring has every class, below the class it derives from."""
    assert drawn() == {name: kind.__bases__[0].__name__ for name, kind in CLASSES.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_no_library_error_is_a_base(name):
    """Nobody has to know the libraries we use in order to catch what we raise."""
    bases = {base.__module__.partition(".")[0] for base in CLASSES[name].__mro__}
    assert bases == {"ml_pipelines", "builtins"}


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_says_what_it_means(name):
    """Each class has its own sentence and its own way out of the command line."""
    assert "__doc__" in vars(CLASSES[name])
    assert CLASSES[name].exit_code in {1, 2, 3, 4}


def test_remedy_follows_the_message():
    """What to do next is part of what is shown, and can be had alone."""
    error = MlPipelinesError("The lake is away.", remedy="Try again.")
    assert str(error) == "The lake is away. Try again."
    assert error.remedy == "Try again."
    assert str(MlPipelinesError("Only this.")) == "Only this."


def test_invalid_input_has_path_and_value():
    """A mistake is one sentence with the path, the value and the remedy."""
    error = InvalidInput("cluster.cpu", "x", "is no quantity", remedy="Write `2`.")
    assert str(error) == "cluster.cpu: 'x' is no quantity. Write `2`."
    assert (error.path, error.value, error.problem) == ("cluster.cpu", "x", "is no quantity")


def test_long_values_are_cut():
    """A megabyte pasted into a field does not fill the screen."""
    assert len(str(InvalidInput("a", "x" * 1_000_000, "is too long"))) < 200


def test_failed_job_carries_its_verdict():
    """Who catches a failed job has the class, the evidence and the last lines."""
    verdict = Verdict(VerdictClass.USER, "train.py raised ValueError", remedy="Mend it.")
    error = JobFailed("ads-model-1", verdict, tail=("boom",))
    assert str(error) == "job ads-model-1: train.py raised ValueError Mend it."
    assert (error.verdict, error.tail) == (verdict, ("boom",))
