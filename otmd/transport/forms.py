"""The four forms by name: how large each program would be, and the program."""

from otmd.transport.compact import COMPACT
from otmd.transport.dual import DUAL
from otmd.transport.form import Form
from otmd.transport.full_coupling import FULL_COUPLING
from otmd.transport.max_flow import MAX_FLOW
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize

FORMS: dict[str, Form] = {form.name: form for form in (FULL_COUPLING, COMPACT, DUAL, MAX_FLOW)}
DEFAULT_MAX_BYTES = 4 * 2**30


def form_named(name: str) -> Form:
    """Return the form of that name, or raise ValueError."""
    if name not in FORMS:
        raise ValueError(f"form: got {name!r}, wanted one of {', '.join(FORMS)}")
    return FORMS[name]


def program_size(problem: TransportProblem, form: str = "compact") -> ProgramSize:
    """How large the program of a form is, without building it.

    Parameters
    ----------
    problem : TransportProblem
        What is to be solved.
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
    size = program_size(problem, form)
    if not size.fits(max_bytes):
        fitting = [name for name in FORMS if FORMS[name].size(problem).fits(max_bytes)]
        advice = f"form {' or '.join(map(repr, fitting))} fits" if fitting else "no form fits"
        raise ValueError(
            f"form: got {form!r}, which needs {size.variables} variables, {size.constraints} "
            f"constraints and {size.bytes} bytes, wanted at most max_bytes={max_bytes:.0f}; {advice}"
        )
    return FORMS[form].build(problem)
