"""Mesh files read with trimesh, and points sampled uniformly from their surface."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import InputError
from fedstill.data.readers.point_colours import no_colours, with_colours
from fedstill.data.readers.point_normals import with_normals
from fedstill.data.readers.raw import content

SUFFIXES = (".ply", ".obj", ".off", ".stl")  # in order of preference, if an object has several formats
Floats = NDArray[np.float64]


def read_mesh(path: Path, colour: bool = False) -> tuple[Floats, NDArray[np.int64]]:
    """Vertices (vertices, 3), with `colour` (vertices, 6), and faces as triples of vertices.

    Without faces the file is a point cloud.
    """
    import trimesh  # imported here, because it takes a second that most commands do not need

    data = content(path)
    kind = path.suffix.lower().removeprefix(".")
    options: dict[str, Any] = {"skip_materials": True} if kind == "obj" else {}
    try:
        # From bytes, without a resolver: no other file is opened. Unprocessed: no vertex is merged or moved.
        loaded: Any = trimesh.load(BytesIO(data), file_type=kind, process=False, **options)
        parts = list(loaded.geometry.values()) if hasattr(loaded, "geometry") else [loaded]
        pieces = [
            (np.asarray(part.vertices, np.float64), np.asarray(getattr(part, "faces", np.empty((0, 3))), np.int64))
            for part in parts
            if len(part.vertices)
        ]
        colours = [_vertex_colours(part) for part in parts if len(part.vertices)] if colour else []
    except Exception as error:  # its parsers raise any kind of error
        raise InputError(f"{path} is no {kind.upper()} file that can be read ({_one_line(error)})") from None
    if not pieces:
        raise InputError(f"{path} holds no points: it is empty, or no {kind.upper()} file")
    for number, found in enumerate(colours):
        if found is None:
            raise no_colours(path)
        pieces[number] = with_colours(pieces[number][0], found, path), pieces[number][1]
    # Parts come in the order of their materials; sorting gives the same mesh under any trimesh version.
    pieces.sort(key=lambda piece: (len(piece[0]), piece[0][:, :3].tobytes()))
    starts = np.cumsum([0, *(len(vertices) for vertices, _ in pieces[:-1])])
    faces = np.concatenate([corners + start for (_, corners), start in zip(pieces, starts, strict=True)])
    vertices = np.concatenate([vertices for vertices, _ in pieces])
    if faces.size and (faces.min() < 0 or faces.max() >= len(vertices)):
        raise InputError(f"{path} is damaged: it has faces whose corners do not exist")
    return vertices, faces


def sample_surface(
    vertices: Floats,
    faces: NDArray[np.int64],
    points: int,
    generator: np.random.Generator,
    where: Path,
    normals: bool = False,
) -> Floats:
    """Points sampled uniformly by area from the surface, with colours between those of the corners if these have any.

    With `normals`, that of its face stands behind each point.

    A row of three numbers is drawn per point, so that the first n points do not depend on how many follow.
    """
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    with np.errstate(invalid="ignore", over="ignore"):
        across = np.cross(b[:, :3] - a[:, :3], c[:, :3] - a[:, :3])
        areas = np.linalg.norm(across, axis=1) / 2
        reach = np.cumsum(areas)
    if not np.isfinite(reach[-1]):
        raise InputError(f"{where} holds vertices that are NaN or infinite")
    if reach[-1] <= 0:
        raise InputError(f"{where} is a mesh without any surface")
    draws = generator.random((points, 3))
    face = np.searchsorted(reach, draws[:, 0] * reach[-1], side="right").clip(max=len(faces) - 1)
    # The square root makes points uniform in a triangle; without it they concentrate at corner a.
    far, along = np.sqrt(draws[:, 1:2]), draws[:, 2:3]
    cloud: Floats = (1 - far) * a[face] + far * (1 - along) * b[face] + far * along * c[face]
    return with_normals(cloud[:, :3], across[face]) if normals else cloud


def _vertex_colours(part: Any) -> NDArray[np.uint8] | None:
    """The colours of a part's vertices (vertices, 3), unless they are only trimesh's default."""
    visual = part.visual
    if getattr(visual, "kind", None) != "vertex":
        return None
    colours: NDArray[np.uint8] = np.asarray(visual.vertex_colors, np.uint8)
    return colours[:, :3] if colours.ndim == 2 and len(colours) == len(part.vertices) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
