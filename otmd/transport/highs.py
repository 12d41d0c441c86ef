"""HiGHS through highspy: arrays in, no modelling layer, and a warm start from program to program."""

from collections.abc import Mapping

import highspy
import numpy as np

from otmd.transport.answer import SolverAnswer
from otmd.transport.program import LinearProgram

METHODS = ("simplex", "ipm")

_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnbounded: "unbounded",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible",
    highspy.HighsModelStatus.kTimeLimit: "time limit",
    highspy.HighsModelStatus.kIterationLimit: "iteration limit",
}
# The tightest that HiGHS takes: the acceptance rate is wanted to nine digits.
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
# Those tolerances are absolute, and draft sets may have less mass than they allow: all bounds and costs
# are passed thirty-two-fold. A power of two, so that nothing is rounded, and no larger one: from 2^7 on
# HiGHS's presolve leaves the simplex thousands of steps that it otherwise spares it.
_SCALE = 2.0**5
_COLUMNWISE, _MINIMISE = 1, 1


class HighsSession:
    """HiGHS kept between programs: one with the same matrix starts from the last one's basis.

    Parameters
    ----------
    method : {"simplex", "ipm"}
        Dual simplex, or the interior point method with crossover to a vertex. A warm start is the
        simplex's, whatever the method of the first program was.
    options : mapping, optional
        Options of HiGHS by name, e.g. ``{"time_limit": 10.0}``.

    Raises
    ------
    ValueError
        For an unknown method or option.
    """

    def __init__(
        self, method: str = "simplex", options: Mapping[str, object] | None = None
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method: got {method!r}, wanted one of {', '.join(METHODS)}")
        self._highs = highspy.Highs()
        self._highs.silent()
        self._program: LinearProgram | None = None
        for name, value in {"solver": method, **_TIGHT, **(options or {})}.items():
            if self._highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise ValueError(f"options: HiGHS takes no {name!r} with value {value!r}")

    def solve(self, program: LinearProgram) -> SolverAnswer:
        """Solve a program, from the last basis where only bounds and costs have changed.

        Parameters
        ----------
        program : LinearProgram
            What to solve.

        Returns
        -------
        SolverAnswer
            With a point only where HiGHS ended optimal.
        """
        if self._program is not None and _same_matrix(self._program, program):
            self._replace_numbers(program)
        else:
            self._pass(program)
        self._program = program
        self._highs.run()
        found = self._highs.getModelStatus()
        status, detail = _STATUS.get(found, "failed"), self._highs.modelStatusToString(found)
        info = self._highs.getInfo()
        steps = max(info.simplex_iteration_count, 0) + max(info.ipm_iteration_count, 0)
        if status != "optimal":
            return SolverAnswer(status, detail, iterations=steps)
        point = self._highs.getSolution()
        values, duals = np.array(point.col_value) / _SCALE, np.array(point.row_dual) / _SCALE
        return SolverAnswer(status, detail, values, duals, steps)

    def _pass(self, program: LinearProgram) -> None:
        matrix = program.matrix
        status = self._highs.passModel(
            program.num_variables,
            program.num_constraints,
            matrix.nnz,
            _COLUMNWISE,
            _MINIMISE,
            0.0,
            _SCALE * program.costs,
            _SCALE * program.column_lower,
            _SCALE * program.column_upper,
            _SCALE * program.row_lower,
            _SCALE * program.row_upper,
            np.asarray(matrix.indptr, np.int32),
            np.asarray(matrix.indices, np.int32),
            np.asarray(matrix.data, np.float64),
            np.zeros(program.num_variables, np.int32),
        )
        self._accept(status)

    def _replace_numbers(self, program: LinearProgram) -> None:
        columns = np.arange(program.num_variables, dtype=np.int32)
        rows = np.arange(program.num_constraints, dtype=np.int32)
        self._accept(self._highs.changeColsCost(columns.size, columns, _SCALE * program.costs))
        lower, upper = _SCALE * program.column_lower, _SCALE * program.column_upper
        self._accept(self._highs.changeColsBounds(columns.size, columns, lower, upper))
        lower, upper = _SCALE * program.row_lower, _SCALE * program.row_upper
        # highspy has this method; its type stubs do not.
        change_rows = self._highs.changeRowsBounds  # pyright: ignore[reportAttributeAccessIssue]
        self._accept(change_rows(rows.size, rows, lower, upper))

    def _accept(self, status: highspy.HighsStatus) -> None:
        if status == highspy.HighsStatus.kError:
            self._program = None
            raise ValueError(
                "program: HiGHS refused its numbers: look for bounds that are infinite on the wrong side"
            )


def solve(
    program: LinearProgram, method: str = "simplex", options: Mapping[str, object] | None = None
) -> SolverAnswer:
    """Solve one program with a fresh :class:`HighsSession`."""
    return HighsSession(method, options).solve(program)


def _same_matrix(one: LinearProgram, other: LinearProgram) -> bool:
    left, right = one.matrix, other.matrix
    return (
        left.shape == right.shape
        and np.array_equal(left.indptr, right.indptr)
        and np.array_equal(left.indices, right.indices)
        and np.array_equal(left.data, right.data)
    )
