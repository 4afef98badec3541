"""The command `qfmt`. One module per command, imported when it is needed.

Exit status: 0 success, 1 a difference or an invalid file, 2 an error (bad input, bad arguments), 130 interrupted.
Results go to stdout, everything else to stderr; an error is one line that starts with `qfmt: error:`.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .. import __version__
from ..backstop import enforced, require_memory
from ..errors import DestinationError, is_expected, message
from .output import line, printing

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "convert": "Convert another format to .qfb, ONNX or C, without the framework that wrote it.",
    "inspect": "Show the nodes and tensors of a file.",
    "check": "List every rule of the specification that a file, or the files of an archive, break.",
    "verify": "Compare a file with its source: weights, then node by node against torch or ONNX Runtime.",
    "diff": "Show what differs between two files: graph, tensors, descriptions.",
    "view": "Show a file as a page: nodes, graph, arithmetic, histograms, differences.",
    "run": "Run a file exactly, with NumPy only.",
    "ops": "List the operators that qfmt knows.",
}
"""Every command and its summary, so that the list of commands imports none of them."""
TROUBLE = 2
INTERRUPTED = 130


class Commands(click.Group):
    """Imports a command's module when it is named, and turns every exception into a line and a status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{name}", __name__).command
        command.short_help = COMMANDS[name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=told) for name, told in COMMANDS.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *arguments: Any, **options: Any) -> Any:
        if "_QFMT_COMPLETE" in os.environ:
            from .completion import register

            register()
            with suppress(KeyError, ValueError):  # of what the shell sets
                return super().main(*arguments, **options)
            return None
        return super().main(*arguments, **options)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asked = bool(args)  # parsing consumes them; without any, the error is the help text
        try:
            with printing():  # `--help` and `--version`
                return super().make_context(info_name, args, parent, **extra)
        except (click.UsageError, DestinationError) as error:
            if not asked:
                raise
            line(f"qfmt: error: {_usage(error) if isinstance(error, click.UsageError) else error}", err=True)
            raise click.exceptions.Exit(TROUBLE) from None
        raise click.exceptions.Exit(0)  # nobody reads it

    def invoke(self, ctx: click.Context) -> Any:
        from . import interruption  # not for `--help`

        interruption.begin()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # an abbreviated name is an error
        try:
            require_memory()
            with enforced(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)  # NumPy's, of numbers of a file
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.UsageError as error:
            fail(ctx, _usage(error, f"qfmt {ctx.invoked_subcommand or ''}".rstrip()))
        except KeyboardInterrupt:  # of a program that calls `main`
            line(interruption.summary(), err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if interruption.ending is not None:
                raise interruption.ending from None
            if ctx.params["debug"] and not is_expected(error):
                from traceback import format_exc

                for each in format_exc().splitlines():  # of any exception, which may quote the file
                    line(each, err=True)
            fail(ctx, message(error))


def _usage(error: click.UsageError, command: str = "qfmt") -> str:
    """Its line. `command` is used where click does not say in which one the error is."""
    command = error.ctx.command_path if error.ctx else command
    what = error.format_message().rstrip(".")
    if error.ctx and isinstance(error, click.MissingParameter):
        what += f": {' '.join([command, *error.ctx.command.collect_usage_pieces(error.ctx)])}"
    return f"{what} (see `{command} --help`)"


def fail(ctx: click.Context, message: str) -> NoReturn:
    """One line on stderr, status 2."""
    line(f"qfmt: error: {message}", err=True)
    ctx.exit(TROUBLE)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  qfmt convert model.pt model.qfb      rescue a quantized TorchScript file, without torch
  qfmt inspect model.qfb               its nodes and tensors
  qfmt run model.qfb --input x.npy     run it, exactly, with NumPy only

Exit status: 0 success, 1 a difference or an invalid file, 2 an error.""",
)
@click.option("--debug", is_flag=True, envvar="QFMT_DEBUG", help="Show the traceback of an unexpected error.")
@click.version_option(__version__, "-V", "--version", prog_name="qfmt", message="%(prog)s %(version)s")
def main(debug: bool) -> None:
    """Portable files for quantized neural networks."""
