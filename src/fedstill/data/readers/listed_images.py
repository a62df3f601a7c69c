"""Images whose classes are in a table beside them (see label_table.py), in any folders below."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fedstill.core.errors import InputError
from fedstill.data.readers.folder import classified, decoded_splits, walk_images
from fedstill.data.readers.label_table import LabelTable, TableRow, UnreadableTableError, find_table
from fedstill.data.readers.pictures import SUFFIXES as IMAGES
from fedstill.data.readers.raw import PARTS, FileFindings, Part, Raw, ReaderHints
from fedstill.data.readers.text_table import SUFFIXES, read_text_table

_SHEETS = frozenset({".xlsx", ".xls", ".ods"})
_SOME = 3  # names in a message


def present(folder: Path, hints: ReaderHints) -> bool:
    """Whether a table names at least one of the images; settings of a table mean that there must be one."""
    images = walk_images(folder)
    if not images:
        return False
    try:
        table = find_table(folder, hints.settings)
    except UnreadableTableError:
        if hints.settings.reads_table or not classified(folder):
            raise
        return False  # the folders name the classes: it is some other file
    if table is None:
        return False
    places = [_place(path, folder) for path in images]
    if table.match(places):
        return True
    table.refuse_unless_unrelated(folder, places)
    return False


def advice(folder: Path) -> str:
    """What images that have no classes lack, as a sentence; empty without images."""
    images = walk_images(folder)
    if not images:
        return ""
    what = f"{folder} has {len(images):,} images"
    if unread := unread_table(folder):
        return f"{what}, and {unread}"
    return f"{what} and no classes: give a folder for each class, or a table (.csv) with the columns file and label"


def unread_table(folder: Path) -> str:
    """What a table in the folder lacks to be one of labels, as part of a sentence; empty without a table."""
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        if path.suffix.lower() in _SHEETS:
            return f"{path.name} cannot be read: save it as .csv, with columns called file and label"
        if path.suffix.lower() in SUFFIXES:
            columns = read_text_table(path).columns
            if any(PurePosixPath(column).suffix.lower() in IMAGES for column in columns):
                return f"{path.name} begins with {columns[0]}: give it a header, as in file,label"
            return (
                f"{path.name} has the columns {', '.join(columns)}: name those of files and classes, as in"
                f" folder:{folder},file=COLUMN,label=COLUMN (labels=COLUMN,COLUMN for columns of 0 and 1)"
            )
    return ""


def read(folder: Path, found: FileFindings, hints: ReaderHints) -> Raw:
    table = find_table(folder, hints.settings)
    assert table is not None
    listed: dict[Path, TableRow] = {}
    used: dict[str, PurePosixPath] = {}
    unlisted: list[PurePosixPath] = []
    places = {path: _place(path, folder) for path in walk_images(folder)}
    rows = table.match(places.values())
    for path, place in places.items():
        row = rows.get(place)
        if row is None or not table.rows[row].label:
            unlisted.append(place)
            continue
        if row in used and not table.is_folder(row, place):
            raise InputError(f"{table.path}: {row} may be {used[row]} or {place}: give the path from {folder}")
        used[row] = place
        listed[path] = table.rows[row]._replace(site=table.site(row, place))
    found.notes.append(f"classes are those of {table.path.name}")
    if unlisted:
        first = ", ".join(map(str, unlisted[:_SOME])) + (", ..." if len(unlisted) > _SOME else "")
        found.notes.append(f"{len(unlisted):,} images have no class in {table.path.name} and are left out: {first}")
    table.report({*used, *(name for name, row in table.rows.items() if not row.label)}, found)
    classes = table.sorted_classes({row.label for row in listed.values()}, found)
    return decoded_splits(_by_part(listed, table, found), classes, folder, hints.settings, found)


def _by_part(listed: dict[Path, TableRow], table: LabelTable, found: FileFindings) -> dict[Part, dict[Path, TableRow]]:
    """Files by split; without one for every file, those that have one, or all as a whole."""
    parts: dict[Part, dict[Path, TableRow]] = {}
    for path, row in listed.items():
        parts.setdefault(row.part or "whole", {})[path] = row
    without = parts.get("whole", {})
    if without and len(parts) > 1:
        del parts["whole"]
        found.notes.append(f"{len(without):,} images without a split in {table.path.name} are left out")
    return {part: parts[part] for part in (*dict.fromkeys(PARTS.values()), "whole") if part in parts}


def _place(path: Path, folder: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(folder).as_posix())
