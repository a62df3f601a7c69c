"""Interfaces of clients, exchanges, methods, engines and participation policies.

Server, fleet and client state are all named tensors, so that one piece of checkpoint code serves all three.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from fedstill.core.dataset import Dataset, Proxy, SharedSamples
from fedstill.core.egress import EVERY_ROUND, Egress
from fedstill.core.keyring import Keyring
from fedstill.core.message import Message
from fedstill.core.noise import ReplyNoise, StepNoise
from fedstill.core.private_steps import PrivateSteps
from fedstill.core.records import Reason
from fedstill.core.renamed import check_exchange
from fedstill.core.settings import Settings
from fedstill.core.streams import Streams
from fedstill.core.sum_noise import SumNoise
from fedstill.core.sums import Summand, Sums, differences, line_for
from fedstill.core.task import Task, Tensors
from fedstill.core.training import Training

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StateVersion:
    """Which version of a client's state counts: the round that wrote it, and, where it stays on site, its digest."""

    round: int
    digest: str = ""


@dataclass(frozen=True, slots=True)  # there may be millions
class Profile:
    """The server's knowledge of a client.

    `last_round` is the last one whose reply was accepted, `kept` the version of its state by which a client finds it.
    """

    id: int
    samples: int
    architecture: str
    last_round: int | None = None
    kept: StateVersion | None = None


@dataclass(frozen=True)
class RoundContext:
    """A round (from 0), its exchange and streams; `clients` counts the population, `failures` are for `aggregate`."""

    round: int
    rounds: int
    clients: int
    exchange: str
    streams: Streams
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, streams: Streams, round: int, rounds: int, clients: int, exchange: str) -> RoundContext:
        """The context of an exchange in a round, from the streams of the whole run."""
        return cls(round, rounds, clients, exchange, streams.at("round", round, exchange))


@dataclass
class Meter:
    """Counts work where it is done, in sample-passes; energy is computed from it, never from a clock."""

    forward: int = 0
    backward: int = 0

    def add(self, forward: int, backward: int = 0) -> None:
        self.forward += forward
        self.backward += backward

    @property
    def work(self) -> float:
        """Forward-equivalent sample-passes: a backward pass costs about two forward ones."""
        return float(self.forward + 2 * self.backward)


@dataclass
class Client:
    """Made where the data is, for one reply, then thrown away.

    `state` outlives rounds: it is replaced, never changed in place, and kept only if the server accepts the reply.
    """

    profile: Profile
    task: Task
    data: Dataset
    streams: Streams
    state: Tensors = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    test: Dataset | None = None  # where models are evaluated on site
    proxy: Proxy | None = None  # samples that everybody has
    validation: Dataset | None = None  # of its own, where a share of each client's data selects a round
    private: PrivateSteps | None = None  # how its training hides single records
    keyring: Keyring | None = None  # of a real site; in simulations secrets come from named streams


class ClientFactory(Protocol):
    """Makes a client where the data is; picklable, so that an engine can send it to its workers once."""

    def __call__(self, profile: Profile, state: Tensors, context: RoundContext) -> Client: ...


class Abstain(Exception):  # noqa: N818 - not a fault
    """Raised in `reply` by a client that took no step (empty shard, one sample under BatchNorm)."""


@dataclass(frozen=True)
class Reply:
    """What came back, and the client's new state; where that stays on site, `kept` is its digest (empty: no news)."""

    profile: Profile
    message: Message
    state: Tensors | None
    work: float = 0.0
    kept: str = ""


BLAMELESS: frozenset[Reason] = frozenset({"dropped", "battery"})  # not the client's fault: it can be replaced


@dataclass(frozen=True)
class Failure:
    """A client whose reply does not count this round, and why."""

    profile: Profile
    reason: Reason
    detail: str
    work: float = 0.0
    declined: bool = False  # its site would not answer, by its policy or its log: another round changes nothing


class Exchange(ABC):
    """One request to the clients and their replies. Methods, surveys and evaluation consist of exchanges."""

    name: str
    egress: Sequence[Egress] = ()
    min_replies: int | None = None  # replies it cannot do without; None: as many as the experiment says
    update_prefix: str = "model/"  # what `norm_limit` measures: the tensors below this name, against the request's
    first_contact_prefix: str | None = None  # what is below this name is sent at first contact only, and kept there
    spill_to_disk: bool = False  # True: replies wait for `aggregate` on disk, not in memory
    summed: Sequence[Summand] | None = None  # of which tensors sums suffice for `finish`; None: it needs single replies
    sum_noise: SumNoise | None = None  # what each client does to its part of the sums, so that they are private
    auxiliary: bool = False  # True: a step around the exchange that does the work; it changes no client's state
    single_answer: bool = False  # True: a site answers it once a round, whatever further attempts its policy accepts

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        check_exchange(cls)

    def on_site(self) -> Exchange:
        """The exchange at a real site, whose privacy noise comes from the operating system."""
        return self

    def when(self, line: Egress, rounds: int) -> str:
        """In which of so many rounds replies contain what a line of `egress` declares, for the manifest."""
        return EVERY_ROUND

    def prepare(self, state: Tensors, context: RoundContext) -> Tensors:
        """Called once, before the requests."""
        return state

    @abstractmethod
    def request(self, state: Tensors, who: Profile, context: RoundContext) -> Message | None:
        """What this client is sent; None: nothing, it is left out of the exchange."""
        ...

    @abstractmethod
    def reply(self, client: Client, request: Message, context: RoundContext) -> Message:
        """Runs where the data is; pure but for `client.state`."""
        ...

    @abstractmethod
    def expect(self, state: Tensors, who: Profile, request: Message) -> Mapping[str, tuple[Shape, dtype]]:
        """Names, shapes (-1: free) and types that a reply must have; anything else is refused."""
        ...

    @abstractmethod
    def aggregate(self, state: Tensors, replies: Sequence[Reply], context: RoundContext) -> Tensors:
        """The server's next state from the accepted replies, which come sorted by client id."""
        ...

    def sum_weight(self, who: Profile) -> int:
        """The weight of a client in the sums of its declared tensors."""
        return 1

    def contribution(self, request: Message, reply: Message) -> Tensors:
        """What a client adds to the sums, by name: the declared tensors, as differences to what all were sent."""
        return differences(self.summed or (), self.common(request), reply)

    def sum_shapes(self, state: Tensors, expected: Mapping[str, tuple[Shape, dtype]]) -> dict[str, Shape]:
        """Names and shapes of the sums, given what `expect` says of a reply."""
        return {name: shape for name, (shape, _) in expected.items() if line_for(self.summed or (), name) is not None}

    def common(self, request: Message) -> Tensors:
        """The part of a request that every client is sent alike."""
        first = self.first_contact_prefix
        return {name: tensor for name, tensor in request.items() if first is None or not name.startswith(first)}

    def finish(self, state: Tensors, sums: Sums, context: RoundContext) -> Tensors:
        """The server's next state from sums over the clients alone."""
        raise TypeError(f"the exchange {self.name!r} does not aggregate from sums")

    def rehearsal(self) -> Exchange:
        """The exchange as a single client can rehearse it, to see what would leave."""
        return self


class Method(Exchange):
    """One or more exchanges a round; a one-exchange method is its own exchange.

    A method holds settings and the task and nothing that changes: whatever outlives a call is server or client
    state, so that a resumed run cannot differ from an uninterrupted one.
    """

    Options: ClassVar[type[Settings]] = Settings  # what may be set under `method` in a configuration
    trains_jointly: ClassVar[bool] = False  # True: `reply_jointly` answers several runs in one pass over the data
    wants: ClassVar[frozenset[str]] = frozenset()  # inputs that the planner hands over (see `runtime.method_inputs`)
    refuses: ClassVar[Mapping[str, str]] = {}  # parts of an experiment that do not go with it, each with why
    local_updates: ClassVar[bool] = False  # True: the user's own function may take the place of local training
    needs: frozenset[str] = frozenset({"one-architecture", "labels"})
    pooled: ClassVar[bool] = False  # True: one client holds all the data
    personal: bool = False  # True: clients have models of their own (see `personalise`)
    shares: str = "shared model"  # what `models` gives, in a reader's words
    defaults: ClassVar[Mapping[str, object]] = {}  # what a configuration starts from, e.g. {"training": {"epochs": 1}}
    defaults_by_kind: ClassVar[Mapping[str, Mapping[str, object]]] = {}  # for a kind of data, where the model has none

    def __init__(
        self, settings: Settings, task: Task, training: Training, inputs: Mapping[str, Any] | None = None
    ) -> None:
        """`inputs` are those that the method `wants`, by name."""
        self.settings, self.task, self.training = settings, task, training

    def reply_jointly(self, requests: Sequence[JointRequest]) -> list[Message]:
        """The replies of several runs of this method, each to the bits that `reply` would give."""
        raise TypeError(f"{type(self).__name__} does not train several runs jointly")

    def check(self) -> None:
        """Refuse settings that cannot work, before any work."""

    def refusal(self, setting: str) -> str | None:
        """Why a setting of training (`loss`, `local_update`) does not go with this method; None: it does."""
        own_way = "this method trains in a way of its own: leave training.local_update out, or use fedavg"
        return self.refuses.get(setting, own_way if setting == "local_update" and not self.local_updates else None)

    @classmethod
    def refused_on_site(cls, settings: Settings) -> str | None:
        """Why real sites, with their own data, cannot take part with these settings; None: they can."""
        return cls.refuses.get("on-site")

    @classmethod
    def shared_samples(cls, settings: Any) -> SharedSamples | None:
        """Of a method that wants "shared samples", which ones; None: with these settings, none."""
        return None

    @property
    def reply_noise(self) -> ReplyNoise | None:
        """The noise that clients add to what they send, which protects them from the server; None: there is none."""
        return None

    def step_noise(self, who: Profile) -> StepNoise | None:
        """The noise in each step of a client's training, which hides single records; None: there is none."""
        return None

    @property
    def tunes(self) -> bool:
        """Whether clients choose something by validation data, which they are then shown."""
        return False

    def training_data(
        self, train: Dataset, bundle: Any, load: Callable[[str], Any], streams: Streams
    ) -> tuple[Dataset, str]:
        """What clients train on: the training split of the bundle, unless a method says otherwise.

        `load` gives another data set by name; the text beside the data is its fingerprint, for the run's identity.
        """
        return train, ""

    def ceiling(self, teacher_outputs: Callable[[], Tensor], data: Dataset) -> float | None:
        """The accuracy on the labels of this data that its teachers leave room for, where that can be computed."""
        return None

    def check_cohort(self, clients: int) -> None:
        """Refuse settings that cannot work with so many clients a round."""

    def check_profiles(self, profiles: Sequence[Profile]) -> None:
        """Refuse settings that cannot work with clients of so many samples."""

    @property
    def clients_in_a_sum(self) -> int:
        """The fewest clients that are added up before the server sees anything; 1: it sees single replies."""
        return 1

    def rounds(self, given: int) -> int:
        """The number of rounds to run, given the configured number."""
        return given

    def same_with_more_rounds(self, few: int, many: int) -> bool:
        """Whether the first `few` of `many` rounds are those of a run of `few`, apart from what a schedule says."""
        return self.rounds(few) == few and self.rounds(many) == many

    def selectable(self, round: int, rounds: int) -> bool:
        """Whether a model of this round, counted from zero, may be called best or selected."""
        return True

    @abstractmethod
    def start(self, streams: Streams) -> Tensors:
        """The server's state before the first round."""
        ...

    def exchanges(self, server: Tensors, round: int) -> Sequence[Exchange]:
        return (self,)

    def every_exchange(self) -> Sequence[Exchange]:
        """Those of all rounds, for sites: they have no server state, and know an exchange by its name."""
        return self.exchanges({}, 0)

    def models(self, server: Tensors) -> Mapping[str, Tensors]:
        """The shared models by architecture; empty if none is shared."""
        return {}

    def extra_models(self, server: Tensors) -> Mapping[str, Tensors]:
        """Further models of the first architecture that are worth a score beside the shared one, by name."""
        return {}

    def skipped(self, server: Tensors) -> Tensors:
        """The server's state after a round that does not count, although clients were sent requests in it."""
        return server

    def metrics(self, server: Tensors) -> Mapping[str, float]:
        """Numbers of this round for the journal, e.g. the privacy spent."""
        return {}

    def at_client(self, architecture: str) -> nn.Module:
        """The model that a client trains, of which a pass costs its device something."""
        return self.task.build(architecture)

    def personalise(self, server: Tensors, state: Tensors) -> Tensors | None:
        """A client's own model from the server's state and its own; None: it has none (yet)."""
        return None

    def assemble(self, architecture: str, personal: Tensors) -> nn.Module:
        """The model of what `personalise` gave."""
        return self.task.build(architecture, personal)


@dataclass(frozen=True)
class JointRequest:
    """One of several requests that are answered in one pass: whose method, which client, what it was sent."""

    method: Method
    client: Client
    request: Message
    context: RoundContext


@runtime_checkable
class ReportsFaults(Protocol):
    """An engine that repairs faults of processes or connections, and describes each repair in a sentence."""

    report: Callable[[str], None]


class Engine(Protocol):
    """Transports requests to clients and replies back; contains no FL logic.

    Outcomes come in any order; jobs are pulled lazily, so that no more requests exist than workers.
    """

    at_sites: bool  # True: clients' states stay where the clients are, and are not sent along

    def open(self, factory: ClientFactory) -> None:
        """Get ready to run the clients that this factory makes; an engine may be opened again and again."""
        ...

    def dispatch(
        self, exchange: Exchange, jobs: Iterable[tuple[Profile, Message, Tensors]], context: RoundContext
    ) -> Generator[Reply | Failure]:
        """Closed early if the run stops in mid-exchange: an engine then drops what is still under way."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
