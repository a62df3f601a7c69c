"""Flower's SecAgg+ on the same update, for comparison: its own workflow and client, connected in this process.

Bell et al., *Secure Single-Server Aggregation with (Poly)Logarithmic Overhead*, 2020, https://eprint.iacr.org/2020/704

With as many shares as clients, each client shares masks with all others, as ours do. It has no consistency round and no
signatures. An update is of single precision and sent in steps of 2^-18, as Flower's defaults are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from fedstill.core.errors import RunError


class _Clients:
    """A grid whose clients answer at once: what `SecAggPlusWorkflow` needs of it."""

    def __init__(self, update: np.ndarray, clients: int) -> None:
        from flwr.app import Context, RecordDict

        self.update, self.numbers = update, list(range(1, clients + 1))
        self.contexts = {one: Context(1, one, {}, RecordDict(), {}, 1) for one in self.numbers}
        self.spent = dict.fromkeys(self.numbers, 0.0)
        self.up, self.down = dict.fromkeys(self.numbers, 0), dict.fromkeys(self.numbers, 0)

    def send_and_receive(self, messages: Iterable[Any], **options: Any) -> list[Any]:
        from flwr.client.mod import secaggplus_mod

        found = []
        for message in messages:
            number = message.metadata.dst_node_id
            message.content = _own(message.content)
            self.down[number] += _bytes(message.content)
            began = process_time()
            reply = secaggplus_mod(message, self.contexts[number], self._trained)
            self.spent[number] += process_time() - began
            self.up[number] += _bytes(reply.content)
            found.append(reply)
        return found

    def _trained(self, message: Any, context: Any) -> Any:
        import flwr.compat.common.recorddict_compat as compat
        from flwr.app import Message
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

        update = self.update + np.float32(context.node_id / 256)
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), 1, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def _own(content: Any) -> Any:
    """A copy whose settings a client may change, as it would across machines."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict(
        {name: ConfigRecord(dict(one)) if isinstance(one, ConfigRecord) else one for name, one in content.items()}
    )


def _bytes(content: Any) -> int:
    """As Flower would send it."""
    from flwr.common.serde import recorddict_to_proto

    return int(recorddict_to_proto(content).ByteSize())


class _Everybody:
    """Takes the place of a strategy: all clients are asked, and the mean is the result."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        from flwr.common import FitIns

        return [(SimpleNamespace(node_id=one + 1), FitIns(parameters, {})) for one in range(self.clients)]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        if failures:
            raise RunError(f"Flower's SecAgg+ failed: {failures[0]}")
        return results[0][1].parameters, {}


@dataclass(frozen=True)
class Cost:
    """Of one sum: the most bytes of a client, its median CPU seconds, the server's, and the mean that came out."""

    up: int
    down: int
    client: float
    server: float
    mean: np.ndarray


def secaggplus_cost(update: np.ndarray, clients: int) -> Cost:
    """One round of Flower's SecAgg+, with as many shares as clients and a majority of them to take masks off."""
    import fedstill.engines.flower  # noqa: F401 - Flower reads its settings when it is first imported

    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict  # isort: skip
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    parameters, grid = ArrayRecord([update]), _Clients(update, clients)
    records = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}), MAIN_PARAMS_RECORD: parameters})
    manager: Any = SimpleNamespace(num_available=lambda: clients)
    strategy: Any = _Everybody(clients)
    context = LegacyContext(Context(1, 0, {}, records, {}, 1), None, strategy, manager)
    began = process_time()
    SecAggPlusWorkflow(float(1), clients // 2 + 1, max_weight=1.0)(cast(Any, grid), context)
    spent = list(grid.spent.values())
    (mean,) = context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
    server = process_time() - began - sum(spent)
    return Cost(max(grid.up.values()), max(grid.down.values()), median(spent), server, mean)
