"""The section `queries` of what `--json` prints of a run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedstill.core.records import Record, RecordSection, record_sections

_OF_QUERY = "accuracy on the client's own classes and those of its query"


class ClientQuery(Record):
    """What became of one client's query."""

    query: tuple[int, ...] = Field(description="classes that it asked for")
    accuracy: float = Field(description=_OF_QUERY)
    before: float | None = Field(None, description="the same before the query, where that is known")
    gain: float | None = Field(None, description="mean recall gained on the classes of the query")
    forgetting: float | None = Field(None, description="mean recall lost on its own classes, zero or negative")
    uniform: float = Field(description="mean recall over its own classes and those of its query")


@record_sections.register("queries")
class PrintedQueries(RecordSection):
    """What became of clients' queries: means over clients, and each of them."""

    part_of: ClassVar[Literal["round", "printed run"]] = "printed run"

    accuracy: float = Field(description=_OF_QUERY)
    accuracy_std: float = Field(description="sample standard deviation of that over clients")
    before: float | None = Field(None, description="the same before the queries, where that is known")
    gain: float | None = Field(None, description="mean recall gained on the classes of queries")
    forgetting: float | None = Field(None, description="mean recall lost on clients' own classes, zero or negative")
    uniform: float = Field(description="mean recall over own classes and those of queries")
    clients: int = Field(description="number of clients with a query")
    compared_with: str | None = Field(None, description="the run of local-only that says what clients were before")
    each: dict[int, ClientQuery] = Field(description="by client id")
