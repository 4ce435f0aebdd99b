"""One line of the table: what was measured, its goal, and whether that was kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value.

    `value` is None where nothing could be measured; `goal` is the goal as people say it
    ("<= 1.15"); `ok` says whether it was kept, and is None where there is no goal or no value.
    """

    what: str
    value: float | None
    unit: str = ""
    goal: str = ""
    ok: bool | None = None
    detail: str = ""

    @property
    def measured(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return "-"
        digits = 0 if self.value == int(self.value) or abs(self.value) >= 1_000 else 3
        return f"{self.value:,.{digits}f} {self.unit}".strip()

    @property
    def outcome(self) -> str:
        """Kept, missed, not run, or nothing where there is no goal."""
        if self.ok is not None:
            return "kept" if self.ok else "MISSED"
        return "not run" if self.value is None else ""
