"""`mlp job`: submit, list, status, logs, attach, cancel."""

from __future__ import annotations

import json
import secrets
from collections import deque
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ml_pipelines.errors import InvalidInput, NotFound, Refused, Superseded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ml_pipelines.cli.session import Session
    from ml_pipelines.job.events import JobEnded
    from ml_pipelines.lifecycle import Job, JobSummary, Platform
    from ml_pipelines.spec.job import JobSpec

INTERRUPTED = 130

run_key_argument = click.argument("run_key", metavar="RUN_KEY")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def job() -> None:
    """Submit, watch and stop jobs. RUN_KEY may be the beginning of one."""


@job.command(
    short_help="Run a command as a Ray job and follow it.",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  mlp job submit -- python train.py --epochs 3
  mlp job submit --workers 2 --cpu 1 --limit-run 2h -- python -m shop.train
  mlp job submit --dry-run -- python train.py

Ctrl-C detaches: the job goes on, followed by a background process. `mlp --help` lists the
exit codes.""",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--name", help="For people. Default: the script's name.")
@click.option("--workers", type=int, default=1, show_default=True, help="Number of Ray workers.")
@click.option("--pool", default="cpu", show_default=True, help="Kind of machine they run on.")
@click.option("--cpu", help="CPUs a worker, such as 2 or 500m. Default: the pool's.")
@click.option("--memory", help="Memory a worker, such as 2Gi. Default: the pool's.")
@click.option("--gpus", type=int, help="GPUs a worker. Default: the pool's.")
@click.option("--env", multiple=True, metavar="K=V", help="For driver and workers; repeatable.")
@click.option(
    "--secret", multiple=True, metavar="K=NAME/KEY",
    help="Environment from a key of a Secret on the cluster; repeatable.",
)  # fmt: skip
@click.option(
    "--experiment", default="", help="Groups jobs whose cost and results belong together."
)
@click.option("--limit-run", metavar="TIME", help="Stop the run after 90s, 15m, 2h, 1d.")
@click.option("--owes-result", is_flag=True, help="Succeed only if the command commits a result.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Packed and sent; the command runs inside it. Default: the working folder.",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Left out of it; repeatable.")
@click.option("--detach", is_flag=True, help="Don't wait: follow it in the background.")
@click.option("--dry-run", is_flag=True, help="Print the RayJob manifest; create nothing.")
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    *,
    folder: Path,
    exclude: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run COMMAND as a Ray job and follow it: its output on stdout, its state on stderr."""
    from ml_pipelines.cli.interrupt import interruptible
    from ml_pipelines.cli.submission import (
        Request,
        check_command,
        dry_run_of,
        left_out,
        run_key_of,
        spec_of,
    )

    session: Session = ctx.obj
    request = Request(**options)
    check_command(request.command, folder)
    exclude = left_out(exclude, folder, session.settings)
    spec = spec_of(request, session.settings)
    run_key = run_key_of(spec, secrets.token_hex(8), session.settings)
    if dry_run:
        _show_dry_run(session, dry_run_of(spec, run_key, folder, exclude, session.settings))
        return
    with interruptible():
        with session.lifecycle.open_platform(session.settings) as platform:
            submitted = _submit(session, platform, spec, run_key, folder, exclude)
            end = None if detach else _follow(session, platform, submitted)
        _leave(ctx, session, run_key, end, code=0 if detach else INTERRUPTED)


@job.command(name="list")
@click.option("--days", type=click.IntRange(1), default=7, show_default=True, help="How far back.")
@json_option
@click.pass_obj
def list_(session: Session, days: int, as_json: bool) -> None:
    """Running and recent jobs, the newest first."""
    from ml_pipelines.cli.console import table

    with session.lifecycle.open_platform(session.settings) as platform:
        jobs = session.lifecycle.list_jobs(platform, days=days)
    if as_json:
        click.echo(_json([asdict(summary) for summary in jobs]))
    elif not jobs:
        click.echo(f"No jobs in {session.settings.runs} in the last {days} days.")
        for other in session.elsewhere("runs"):
            click.echo(f"There are others: {other} mlp job list")
        click.echo("Run one: mlp job submit -- python train.py")
    else:
        rows = [_row(summary, session) for summary in jobs]
        click.echo(table(("RUN KEY", "PHASE", "OWNER", "ATTEMPTS", "AGE", "TOOK", "WHY"), rows))


@job.command()
@run_key_argument
@json_option
@click.pass_obj
def status(session: Session, run_key: str, as_json: bool) -> None:
    """Where one job stands, why, and what to do next."""
    from ml_pipelines.cli.console import plain

    with session.lifecycle.open_platform(session.settings) as platform:
        key = session.find(run_key, platform)
        summary = session.lifecycle.describe(key, platform=platform)
    if as_json:
        click.echo(_json(asdict(summary)))
        return
    for name, value in _facts(summary, session):
        click.echo(f"{name:<11} {plain(value)}")
    click.echo(f"{'next':<11} mlp job {'logs' if summary.phase.ended else 'attach'} {key}")


@job.command()
@run_key_argument
@click.option("--attempt", type=click.IntRange(1), help="Default: the last one.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt is over.")
@click.option(
    "--source",
    default="driver",
    show_default=True,
    help="`driver`, `driver-2` (its second start), `worker/POD`.",
)
@click.pass_obj
def logs(
    session: Session,
    run_key: str,
    attempt: int | None,
    tail: int | None,
    source: str,
    *,
    follow: bool,
) -> None:
    """Print what a job has logged. Whoever follows the job goes on with it."""
    if follow and tail:
        raise click.UsageError("--tail N and --follow don't go together: leave one out.")
    with session.lifecycle.open_platform(session.settings) as platform:
        key = session.find(run_key, platform)
        lines = session.lifecycle.read_logs(
            key, platform=platform, attempt=attempt, source=source, follow=follow
        )
        made = session.lifecycle.describe(key, platform=platform).attempts if attempt else 0
        if attempt and attempt > made:
            raise InvalidInput(
                "--attempt", attempt, f"is no attempt of {key}", remedy=f"It has had {made}."
            )
        for line in lines if tail is None else deque(lines, maxlen=tail):
            click.echo(line.text)


@job.command()
@run_key_argument
@click.pass_context
def attach(ctx: click.Context, run_key: str) -> None:
    """Take over following a job; its background process ends. Ctrl-C detaches again."""
    from ml_pipelines.cli.interrupt import interruptible

    session: Session = ctx.obj
    with interruptible():
        with session.lifecycle.open_platform(session.settings) as platform:
            key = session.find(run_key, platform)
            attached = session.lifecycle.attach(key, platform=platform, takeover=True)
            end = _follow(session, platform, attached)
        _leave(ctx, session, key, end, code=INTERRUPTED)


@job.command(short_help="Stop a job: nothing of it is left.")
@run_key_argument
@click.option("--reason", default="", help="Kept with the job.")
@click.pass_obj
def cancel(session: Session, run_key: str, reason: str) -> None:
    """Stop a job, whoever follows it: nothing of it is left within 30 seconds."""
    from ml_pipelines.cli.console import Console, say
    from ml_pipelines.job.events import JobEnded
    from ml_pipelines.job.phase import Phase

    console = Console(session.clock)
    with session.lifecycle.open_platform(session.settings) as platform:
        key = session.find(run_key, platform)
        events = session.lifecycle.cancel(
            key, platform=platform, reason=reason, by=session.settings.owner
        )
        for event in events:
            console.show(event)
    ended = [event.phase for event in events if isinstance(event, JobEnded)]
    if ended and ended[-1] is not Phase.CANCELLED:
        say("Nothing was cancelled: it had ended before.")


# ── what the commands stand on ──────────────────────────────────────────────────────────────────


def _submit(
    session: Session,
    platform: Platform,
    spec: JobSpec,
    run_key: str,
    folder: Path,
    exclude: tuple[str, ...],
) -> Job:
    """Pack and submit. Interrupted in the midst of it, nothing may stay behind."""
    from ml_pipelines.cli.console import say
    from ml_pipelines.cli.submission import options_named
    from ml_pipelines.packing import pack

    try:
        with options_named():
            code = pack(folder, platform.store, exclude=exclude)
        say(f"Packed {folder.resolve()} ({code.sha256[:12]})")
        spec = spec.model_copy(update={"code": code})
        with options_named():
            return session.lifecycle.submit(spec, run_key=run_key, labels={}, platform=platform)
    except KeyboardInterrupt:
        with suppress(InvalidInput, NotFound, Refused):
            session.lifecycle.cancel(
                run_key, platform=platform, reason="interrupted", by=session.settings.owner
            )
        say("\nInterrupted before the job was submitted: nothing was left behind.")
        raise click.exceptions.Exit(INTERRUPTED) from None


def _show_dry_run(session: Session, manifest: dict[str, Any]) -> None:
    """Print the manifest; where a server would take it, have the server say whether it does."""
    from ml_pipelines.cli.console import say
    from ml_pipelines.spec.manifest import to_yaml

    click.echo(to_yaml(manifest), nl=False)
    if session.settings.backend == "local":
        return
    with session.lifecycle.open_backend(session.settings, session.clock) as backend:
        for sentence in backend.check(manifest):
            say(f"note: {sentence}")
        say(f"Valid: {backend.place.location} would take it (checked there); nothing was created.")


def _follow(session: Session, platform: Platform, followed: Job) -> JobEnded | None:
    """Show a job's events to its end; None when interrupted: the claim is released by then."""
    from ml_pipelines.cli.console import Console
    from ml_pipelines.job.events import JobEnded

    console = Console(session.clock)
    try:
        with closing(session.lifecycle.follow(followed, platform=platform)) as events:
            for event in events:
                console.show(event)
                if isinstance(event, JobEnded):
                    return event
    except KeyboardInterrupt:
        return None
    except Superseded as err:
        raise Refused(err.message, remedy=err.remedy) from err
    raise AssertionError("a job's events end with JobEnded")


def _leave(
    ctx: click.Context, session: Session, run_key: str, end: JobEnded | None, *, code: int
) -> None:
    """Exit by the job's end; without one, leave it to a background process and say so."""
    from ml_pipelines.cli.console import commands, exit_code, say

    if end is not None:
        ctx.exit(exit_code(end.phase))
    log = session.spawn_loop(run_key, session.settings)
    say(f"\nDetached: {run_key} goes on, followed in the background (its log: {log}).")
    commands(run_key, "attach", "status", "cancel")
    ctx.exit(code)


def _row(summary: JobSummary, session: Session) -> tuple[str, ...]:
    age, took = _ages(summary, session)
    return (
        summary.run_key,
        str(summary.phase),
        summary.owner,
        str(summary.attempts),
        age,
        took,
        summary.sentence,
    )


def _facts(summary: JobSummary, session: Session) -> Iterator[tuple[str, str]]:
    age, took = _ages(summary, session)
    yield "run key", summary.run_key
    yield "name", summary.name
    yield "phase", f"{summary.phase}: {summary.sentence}"
    if not summary.phase.ended:
        yield "followed", "yes" if summary.followed else "no: attach, or nobody decides about it"
    yield "owner", summary.owner
    if summary.experiment:
        yield "experiment", summary.experiment
    yield "backend", summary.backend
    yield "attempts", str(summary.attempts)
    if summary.evictions:
        yield "evicted", f"{summary.evictions} times by its queue, and let in again after that"
    created = datetime.fromisoformat(summary.created_at)
    yield "created", f"{created:%Y-%m-%d %H:%M:%S} UTC ({age} ago)"
    yield "took", took
    if summary.log_url:
        yield "log", summary.log_url


def _ages(summary: JobSummary, session: Session) -> tuple[str, str]:
    """How long ago a job was created, and how long it took or has taken."""
    from ml_pipelines.cli.console import span

    now = session.clock.now()
    created = datetime.fromisoformat(summary.created_at)
    ended = datetime.fromisoformat(summary.ended_at) if summary.ended_at else now
    return span((now - created).total_seconds()), span((ended - created).total_seconds())


def _json(value: object) -> str:
    return json.dumps(value, indent=2, default=str)
