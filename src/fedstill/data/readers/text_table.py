"""Tables with a header: CSV and TSV as text, Parquet through pyarrow. Every cell is a text; a missing one is empty."""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

from fedstill.core.errors import InputError, did_you_mean
from fedstill.data.readers.raw import content

SUFFIXES = (".csv", ".tsv", ".parquet")
_DELIMITERS = (",", ";", "\t", "|")
_EXCEL = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a first line that only Excel writes and reads
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as spreadsheets write "Unicode text"
_PEOPLE = ("patient", "subject", "case", "person", "participant", "proband")
_NUMBERED = re.compile(f"(?:{'|'.join(_PEOPLE)})(?:id|no|nr|num|number|nummer|name|code|key|uid)?s?")
_RECORDS = frozenset({"mrn", "pid", "mpi", "medicalrecordnumber", "studyuid", "studyinstanceuid", "patientennummer"})


@dataclass(frozen=True)
class TextTable:
    """The header and the rows of one table."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()  # of the rows, as a spreadsheet counts, where rows without any cell are left out

    def number(self, row: int) -> int:
        """What a spreadsheet calls a row: the first one below the header is 2."""
        return self.numbers[row] if self.numbers else row + 2

    def column(self, name: str) -> list[str]:
        """All cells of one column."""
        at = self.columns.index(self.named(name))
        return [row[at] for row in self.rows]

    def named(self, name: str) -> str:
        """A column by its name, in any case of letters, with blanks or underscores."""
        found = self.find((name,))
        if found is None:
            raise InputError(f"{self.path} has no column {name!r}: {did_you_mean(name, self.columns)}")
        return found

    def find(self, names: tuple[str, ...]) -> str | None:
        """The column that is called by the first possible of these names."""
        known = {column.lower(): column for column in self.columns}
        found = next((known[name.lower()] for name in names if name.lower() in known), None)
        if found is not None:
            return found
        alike = {plain_name(column): column for column in reversed(self.columns)}
        return next((alike[plain_name(name)] for name in names if plain_name(name) in alike), None)

    def like_groups(self) -> list[str]:
        """Columns that look like patients: by their name, and with fewer values than rows."""
        found = []
        for column in self.columns:
            if is_identifier(column):
                cells = [cell for cell in self.column(column) if cell]
                if 1 < len(set(cells)) < len(cells):
                    found.append(column)
        return found


def plain_name(column: str) -> str:
    """A column's name without what people write differently.

    >>> plain_name("File Name") == plain_name("file_name") == "filename"
    True
    """
    return re.sub(r"[\W_]+", "", column.casefold())


def is_identifier(column: str) -> bool:
    """Whether a column is called like a patient's identifier, or like any other.

    >>> [is_identifier(name) for name in ("PatientID", "patient_nr", "MRN", "scan_id", "age", "subjective", "grid")]
    [True, True, True, True, False, False, False]
    """
    plain = re.sub(r"[\W_]", "", column.lower())
    ends = re.search(r"(?i:[\W_]u?id)$|[a-z](?:U?ID|Id)$", column) is not None
    return ends or plain in _RECORDS or _NUMBERED.fullmatch(plain) is not None


def read_text_table(path: Path) -> TextTable:
    """A table from a file; a row of another length than the header is an error that names its line."""
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    text = _text(content(path))
    delimiter, text = _delimiter(path, text)
    try:
        # Blanks behind a separator would make the quotes behind them part of a cell.
        read = csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != "\t")
        lines = [(number, line) for number, line in enumerate(read, start=1) if any(line)]
    except csv.Error as error:
        raise InputError(f"{path} is no CSV ({error}): mend it, or take it away") from None
    if not lines:
        raise InputError(f"{path} holds no header: name its columns in the first line")
    columns = tuple(cell.strip() for cell in lines[0][1])
    for number, line in lines[1:]:
        if len(line) != len(columns):
            raise InputError(
                f"{path}: row {number} has {len(line)} cells, and the header has {len(columns)}: mend that row"
            )
    rows = tuple(tuple(cell.strip() for cell in line) for _, line in lines[1:])
    return _checked(path, columns, rows, tuple(number for number, _ in lines[1:]))


def read_header(path: Path) -> TextTable:
    """The columns of a text file, without its rows; of a file that cannot be read as a table, none."""
    delimiter, text = _delimiter(path, _text(content(path)))
    try:
        line = text.partition("\n")[0].rstrip("\r")
        first = next(csv.reader([line], delimiter=delimiter, skipinitialspace=delimiter != "\t"), [])
    except csv.Error:
        first = []
    return TextTable(path, tuple(cell.strip() for cell in first), ())


def _checked(
    path: Path, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], numbers: tuple[int, ...] = ()
) -> TextTable:
    if "" in columns:  # left by a separator at the end of every line
        named = [at for at, column in enumerate(columns) if column or any(row[at] for row in rows)]
        columns, rows = tuple(columns[at] for at in named), tuple(tuple(row[at] for at in named) for row in rows)
    lower = [column.lower() for column in columns]
    if twice := [column for column in columns if lower.count(column.lower()) > 1]:
        raise InputError(f"{path} has several columns called {twice[0]!r}: rename all but one")
    return TextTable(path, columns, rows, numbers)


def _text(data: bytes) -> str:
    """UTF-16 if it begins as such, else UTF-8, or else Latin-1, which every byte can be read as."""
    try:
        return data.decode("utf-16" if data.startswith(_WIDE) else "utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _delimiter(path: Path, text: str) -> tuple[str, str]:
    """What separates cells, and the text without a line that says so.

    In .tsv files it is a tab, in others what the header has most of.

    >>> _delimiter(Path("a.csv"), "sep=;\\nfile;label\\n")
    (';', 'file;label\\n')
    """
    first, _, rest = text.partition("\n")
    if (given := _EXCEL.fullmatch(first.strip())) is not None:
        return given[1], rest
    return "\t" if path.suffix.lower() == ".tsv" else max(_DELIMITERS, key=first.count), text


def _parquet(path: Path) -> TextTable:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{path} needs pyarrow to be read: pip install pyarrow, or save it as .csv") from None
    content(path)
    try:
        held = parquet.read_table(path).to_pydict()
    except Exception as error:  # its errors are of many types
        raise InputError(f"{path} is no Parquet file ({' '.join(str(error).split())}): write it again") from None
    cells = [_cells(column) for column in held.values()]
    return _checked(path, tuple(map(str, held)), tuple(zip(*cells, strict=True)))


def _cells(column: list[object]) -> list[str]:
    """Values as texts; whole numbers that are stored as fractions, since some are missing, are whole.

    >>> _cells([1.0, None, 2.0]), _cells([1.0, 2.5])
    (['1', '', '2'], ['1.0', '2.5'])
    """
    known = [value for value in column if value is not None and value == value]
    if known and all(isinstance(value, float) and value.is_integer() for value in known):
        column = [int(value) if isinstance(value, float) and value == value else None for value in column]
    return ["" if value is None or value != value else str(value).strip() for value in column]
