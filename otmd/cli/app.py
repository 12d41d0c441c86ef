"""The commands, put together."""

from cyclopts import App

from otmd import __version__
from otmd.cli.collect import collect
from otmd.cli.demo import demo
from otmd.cli.measure import measure
from otmd.cli.report import report
from otmd.cli.solve import solve

app = App(
    name="otmd",
    help=(
        "How far is a multi-draft speculative decoding verifier from the optimum? "
        "Exactly, on toy distributions and on language models."
    ),
    help_epilogue=(
        "Start with: otmd demo\n\n"
        "Every command takes --debug, to see where an error came from. Exit codes: 0 done, "
        "1 failed, 2 wrong usage, 130 interrupted."
    ),
    version=__version__,
    help_format="plaintext",
    # Ours: it says what was kept.
    suppress_keyboard_interrupt=False,
)
for command in (demo, collect, measure, report, solve):
    app.command(command)
