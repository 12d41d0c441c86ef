"""The commands, put together."""

from cyclopts import App, Parameter

from otmd import __version__
from otmd.cli import collect, demo, measure, report, solve

app = App(
    name="otmd",
    help=(
        "How far is a verifier for multi-draft speculative decoding from the optimum? "
        "Answered exactly, on toy distributions and on language models."
    ),
    help_epilogue=(
        "Examples:\n\n"
        "  otmd demo\n\n"
        "  otmd solve 1/2,1/4,1/4 1/4,1/4,1/2 --num-drafts 2\n\n"
        "Every command takes --debug, which shows where an error came from. Exit codes: 0 done, "
        "1 failed, 2 wrong usage, 130 interrupted."
    ),
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    # Ours: it says what was kept.
    suppress_keyboard_interrupt=False,
)
app.command(demo.demo, help_epilogue=demo.EXAMPLES)
app.command(collect.collect, help_epilogue=collect.EXAMPLES)
app.command(measure.measure, help_epilogue=measure.EXAMPLES)
app.command(report.report, help_epilogue=report.EXAMPLES)
app.command(solve.solve, help_epilogue=solve.EXAMPLES)
