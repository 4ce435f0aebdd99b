"""`mlp` itself: commands load when called, errors become a sentence and a code."""

from __future__ import annotations

import importlib
from typing import Any, cast

import click

from ml_pipelines import __version__
from ml_pipelines.cli.session import Session
from ml_pipelines.errors import MlPipelinesError

INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done; a followed job succeeded
  1    the followed job failed or was lost (whatever code its driver ended with)
  2    bad input: nothing was created
  3    refused: well-formed, but not allowed now
  4    run storage, the lake or the backend can't be reached
  5    the followed job was cancelled
  130  Ctrl-C: a submitted job goes on in the background
"""


class ShownError(click.ClickException):
    """One of our errors as click shows it: a sentence, what to do, the exit code."""

    def __init__(self, error: MlPipelinesError) -> None:
        super().__init__(error.message)
        self.exit_code = error.exit_code  # type: ignore[misc]  # a class variable only by habit
        self.remedy = error.remedy

    def show(self, file: Any = None) -> None:
        """Write it to stderr."""
        click.secho(f"mlp: {self.message}", err=True, file=file, fg="red")
        if self.remedy:
            click.echo(f"  → {self.remedy}", err=True, file=file)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called or listed."""

    def __init__(self, *args: Any, lazy: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._lazy.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = target.partition(":")
        return cast("click.Command", getattr(importlib.import_module(module), name))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MlPipelinesError as err:
            raise ShownError(err) from err
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(
    cls=LazyGroup,
    lazy={
        "job": "ml_pipelines.cli.job:job",
        "data": "ml_pipelines.cli.data:data",
        "doctor": "ml_pipelines.cli.doctor:doctor",
    },
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="mlp")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run jobs on Ray, keep data in the lake, look after this machine.

    Where things lie: MLP_HOME (default: the nearest .mlp folder, else ~/.ml_pipelines), MLP_LAKE,
    MLP_RUNS. The same jobs are seen by Dagster.
    """
    ctx.ensure_object(Session)
