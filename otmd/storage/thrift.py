"""Whole numbers in a structure of Thrift's compact protocol, by their place."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 4


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("a structure that is cut short")
        self.at += 1
        return self.data[self.at - 1]

    def skip(self, count: int) -> None:
        self.at += count

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError("a number that is too long")

    def zigzag(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)


def read_numbers(data: bytes) -> tuple[int, dict[tuple[int, ...], int]]:
    """Read the structure that the bytes begin with.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    length : int
        Of the structure, in bytes.
    numbers : dict
        The field's numbers from the outermost structure inwards, to its value.

    Raises
    ------
    ValueError
        For what is no such structure, or one with collections, which page headers do not have.
    """
    reader, numbers = _Reader(data), {}
    _read_structure(reader, (), numbers)
    return reader.at, numbers


def _read_structure(
    reader: _Reader, place: tuple[int, ...], numbers: dict[tuple[int, ...], int]
) -> None:
    if len(place) > _DEEPEST:
        raise ValueError("structures that are too deep")
    field = 0
    while head := reader.byte():
        field = field + (head >> 4) if head >> 4 else reader.zigzag()
        kind = head & 15
        if kind in (_I16, _I32, _I64):
            numbers[(*place, field)] = reader.zigzag()
        elif kind == _BINARY:
            reader.skip(reader.varint())
        elif kind == _STRUCT:
            _read_structure(reader, (*place, field), numbers)
        elif kind in (_BYTE, _DOUBLE):
            reader.skip(1 if kind == _BYTE else 8)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"a field of kind {kind}")
