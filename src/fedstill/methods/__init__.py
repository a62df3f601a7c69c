"""Federated methods, one file each; importing this package registers them."""

from fedstill.methods.base import methods
from fedstill.methods.centralised import Centralised
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.local_only import LocalOnly

__all__ = ["Centralised", "FedAvg", "LocalOnly", "methods"]
