"""The four forms by name: how large each program would be, and the program."""

from decimal import Decimal

from otmd.drafts import DraftLaw
from otmd.transport.compact import COMPACT
from otmd.transport.dual import DUAL
from otmd.transport.form import Form, Shaped
from otmd.transport.full_coupling import FULL_COUPLING
from otmd.transport.max_flow import MAX_FLOW
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize
from otmd.transport.shape import ProblemShape, closed_counts

FORMS: dict[str, Form] = {form.name: form for form in (FULL_COUPLING, COMPACT, DUAL, MAX_FLOW)}
DEFAULT_MAX_BYTES = 4 * 2**30


def form_named(name: str) -> Form:
    """Return the form of that name, or raise ValueError."""
    if name not in FORMS:
        raise ValueError(f"form: got {name!r}, wanted one of {', '.join(FORMS)}")
    return FORMS[name]


def program_size(problem: Shaped, form: str = "compact") -> ProgramSize:
    """How large the program of a form is, without building it.

    Parameters
    ----------
    problem : TransportProblem or ProblemShape
        What is to be solved, or its shape alone: ``ProblemShape.of(drafts)`` lists no tuples.
    form : {"compact", "full", "dual", "max_flow"}
        How it is written.

    Returns
    -------
    ProgramSize
        Variables, constraints, nonzeros and bytes.

    Raises
    ------
    ValueError
        For an unknown form.
    """
    return form_named(form).size(problem)


def refuse_too_large(
    law: DraftLaw, form: str, merge: bool = True, max_bytes: float = DEFAULT_MAX_BYTES
) -> None:
    """Raise ValueError where a law's program would be too large, before its tuples are listed.

    A law without a closed form passes: it is counted when it is enumerated, and the program measured
    before it is built.

    Parameters
    ----------
    law : DraftLaw
        A law without leading axes.
    form : {"compact", "full", "dual", "max_flow"}
        How the problem is to be written.
    merge : bool
        Whether tuples with the same set of tokens are to be one row.
    max_bytes : float
        The most that the program's arrays may need.

    Raises
    ------
    ValueError
        For a program that is too large; the message names its size and the forms that fit.
    """
    chosen, counts = form_named(form), closed_counts(law, merge)
    if counts is None:
        return
    shape = ProblemShape(*counts, law.vocab_size)
    if not chosen.size(shape).fits(max_bytes):
        raise _too_large(shape, chosen, max_bytes, listable=law.can_enumerate())


def build_program(
    problem: TransportProblem, form: str = "compact", max_bytes: float = DEFAULT_MAX_BYTES
) -> LinearProgram:
    """Write a problem as a linear program.

    Parameters
    ----------
    problem : TransportProblem
        What is to be solved.
    form : {"compact", "full", "dual", "max_flow"}
        How it is written.
    max_bytes : float
        Refuse to build a program whose arrays are larger.

    Returns
    -------
    LinearProgram

    Raises
    ------
    ValueError
        For an unknown form or a program that is too large.
    """
    chosen = form_named(form)
    if not chosen.size(problem).fits(max_bytes):
        raise _too_large(problem, chosen, max_bytes)
    return chosen.build(problem)


def _too_large(problem: Shaped, form: Form, max_bytes: float, listable: bool = True) -> ValueError:
    size = form.size(problem)
    fitting = [other.name for other in FORMS.values() if other.size(problem).fits(max_bytes)]
    if not listable:
        advice = (
            "no form fits, as the law has too many tuples to list; optimal_acceptance lists none"
        )
    elif fitting:
        advice = f"form {' or '.join(map(repr, fitting))} fits"
    else:
        advice = "no form fits"
    return ValueError(
        f"form: got {form.name!r}, which needs {_written(size.variables)} variables, "
        f"{_written(size.constraints)} constraints and {_written(size.bytes)} bytes, wanted at most "
        f"max_bytes={max_bytes:.0f}; {advice}"
    )


def _written(count: int) -> str:
    # Python writes no integer of more than 4,300 digits, and nobody reads one of a hundred.
    return str(count) if count < 10**30 else f"{Decimal(count):.2e}"
