"""Sections of a run's records: `queries` as `--json` prints them, and `query` in the result of one query."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedstill.core.records import Record, RecordSection, record_sections

_OF_QUERY = "accuracy on the client's own classes and those of its query"

_COLLAPSED = "own classes whose recall falls by 20 points or more, and to less than half"
_CHOICE = "with a limit on forgetting: the chosen query_weight, epochs, and points forgotten on held-out samples"


class ClientQuery(Record):
    """The outcome of one client's query."""

    query: tuple[int, ...] = Field(description="queried classes")
    accuracy: float = Field(description=_OF_QUERY)
    before: float | None = Field(None, description="the same before the query, where that is known")
    gain: float | None = Field(None, description="mean recall gained on the classes of the query")
    forgetting: float | None = Field(None, description="mean recall lost on its own classes, zero or negative")
    uniform: float = Field(description="mean recall over its own classes and those of its query")
    collapsed: tuple[int, ...] = Field((), description=_COLLAPSED)
    choice: dict[str, float] | None = Field(None, description=_CHOICE)
    no_teacher: tuple[str, ...] = Field(
        (), description="queried classes that no peer knows by the probe's rule: nearest peers, scores and settings"
    )


@record_sections.register("queries")
class PrintedQueries(RecordSection):
    """The outcomes of clients' queries: means over clients, and each of them."""

    part_of: ClassVar[frozenset[Literal["round", "result", "printed run"]]] = frozenset({"printed run"})

    accuracy: float = Field(description=_OF_QUERY)
    accuracy_std: float = Field(description="sample standard deviation of that over clients")
    before: float | None = Field(None, description="the same before the queries, where that is known")
    gain: float | None = Field(None, description="mean recall gained on the classes of queries")
    forgetting: float | None = Field(None, description="mean recall lost on clients' own classes, zero or negative")
    uniform: float = Field(description="mean recall over own classes and those of queries")
    clients: int = Field(description="number of clients with a query")
    compared_with: str | None = Field(
        None, description="the run of local-only with the clients' models before the queries"
    )
    each: dict[int, ClientQuery] = Field(description="by client id")


class QueriedModel(Record):
    """A model that was offered as a file or an object, and queried."""

    name: str = Field(description="of the peer")
    model: str = Field(description="its architecture")
    sha256: str = Field(description="of its weights")
    recall: dict[int, float] = Field(
        default_factory=dict, description="by class, on the peer's held-out data, as far as the peer reports it"
    )


@record_sections.register("query")
class QueryRecord(RecordSection):
    """A query to the clients of another run, if the run is the result of one."""

    part_of: ClassVar[frozenset[Literal["round", "result", "printed run"]]] = frozenset({"result", "printed run"})

    run: str = Field(description="the run whose clients were queried, or the folder of offered models")
    client: int = Field(description="client with the query")
    classes: tuple[int, ...] = Field(description="queried classes")
    teachers: tuple[int, ...] = Field(description="clients whose models passed the probe")
    before: tuple[float, ...] = Field(description="recall of each class before the query")
    after: tuple[float, ...] = Field(description="recall of each class after the query")
    epochs: tuple[tuple[str, int, float], ...] = Field(description="phase, epoch and accuracy of every epoch")
    collapsed: tuple[int, ...] = Field((), description=_COLLAPSED)
    choice: dict[str, float] | None = Field(None, description=_CHOICE)
    offered: tuple[QueriedModel, ...] | None = Field(
        None, description="offered models, where no run was queried; they are clients from 1 on, and the asker is 0"
    )
    unmeasured: tuple[int, ...] | None = Field(
        None, description="queried classes without held-out samples, whose recall is not known and given as 0"
    )
