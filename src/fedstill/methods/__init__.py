"""Federated methods, one file each; importing this package registers them."""

from fedstill.core.protocols import Method
from fedstill.methods.base import methods
from fedstill.methods.centralised import Centralised
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.methods.local_only import LocalOnly

__all__ = ["Centralised", "FedAvg", "FedAvgSettings", "LocalOnly", "Method", "methods"]
