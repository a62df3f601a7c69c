"""Server rules of Fedstill's methods as strategies of a Flower app; needs the extra `fedstill[flower]`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from fedstill.core.errors import InputError, RunError
from fedstill.core.settings import make_settings
from fedstill.methods.server_rule import ServerRule, server_rule_of

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
except ModuleNotFoundError as error:
    raise InputError("fedstill.flower needs Flower: pip install 'fedstill[flower]'") from error

__all__ = ["Strategy"]

_FLOWERS = frozenset(inspect.signature(FlowerFedAvg).parameters)
# Other names of the server's learning rate; the clients' own rate is no setting here.
_ALIASES = {"lr": "eta", "learning_rate": "eta", "server_rate": "eta", "server_learning_rate": "eta"}
_STEPS = "steps"  # in a client's MetricRecord, for methods that read it


class Strategy(FlowerFedAvg):  # type: ignore[misc]  # Flower's types are not read
    """The server rule of a Fedstill method in a stock Flower app.

        strategy = fedstill.flower.Strategy("fedadam", eta=0.1, fraction_train=0.5)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=3)

    Clients need nothing of Fedstill: they return `ArrayRecord(model.state_dict())` and a `MetricRecord` with
    `num-examples`; for `fednova` also with `steps`, the number of optimiser steps. Keywords are the settings of the
    method (`server_rate` and `lr` are other names of `eta`) and the arguments of Flower's FedAvg, which samples nodes
    and aggregates metrics here too.

    Only parameters go through the rule: running statistics of BatchNorm are averaged, and `num_batches_tracked` stays
    an integer. Pass `model` to tell buffers from parameters exactly (see `fedstill.aggregation`). `momentum` is that of
    the clients' SGD, which `fednova` reads. Methods whose clients do more than train and return one model are refused.
    Replies are aggregated by node id, so that their order of arrival does not change a bit.
    """

    def __init__(
        self, method: str = "fedavg", *, model: nn.Module | None = None, momentum: float = 0.0, **settings: Any
    ) -> None:
        kind = server_rule_of(method)
        own = {_ALIASES.get(name, name): value for name, value in settings.items() if name not in _FLOWERS}
        options = make_settings(kind.Options, own, f"method {method!r}")
        super().__init__(**{name: value for name, value in settings.items() if name in _FLOWERS})
        self.method = method
        self.rule = ServerRule(kind, options, model, momentum)
        self.current: dict[str, Tensor] | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the model of the round, and send it to the sampled nodes."""
        self.current = dict(arrays.to_torch_state_dict())
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model by the method's rule, and the weighted mean of the metrics."""
        accepted, _ = self._check_and_log_replies(replies, is_train=True)
        if not accepted:
            return None, None
        if self.current is None:
            raise RunError("a rule starts from the round's model: call configure_train before aggregate_train")
        contents = [message.content for message in sorted(accepted, key=lambda one: one.metadata.src_node_id)]
        states = [dict(next(iter(one.array_records.values())).to_torch_state_dict()) for one in contents]
        weights = [float(value) for value in _reported(contents, self.weighted_by_key)]
        steps = [int(value) for value in _reported(contents, _STEPS)] if self.rule.method.reads_steps else None
        self.current = self.rule(self.current, states, weights, steps)
        return ArrayRecord(self.current), self.train_metrics_aggr_fn(contents, self.weighted_by_key)


def _reported(contents: Sequence[RecordDict], name: str) -> list[float]:
    """A number in the MetricRecord of each reply."""
    records = [next(iter(one.metric_records.values())) for one in contents]
    if any(name not in record for record in records):
        raise InputError(f"a client's MetricRecord has no {name!r}: report it in every reply")
    return [cast(float, record[name]) for record in records]
