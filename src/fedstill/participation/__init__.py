"""Client sampling, dropout and replacement. Further packages add policies, and devices with batteries."""

from fedstill.participation.dropout import dropouts
from fedstill.participation.policies import policies

__all__ = ["dropouts", "policies"]

policies.declare("fedstill.participation.label_balanced", "label-balanced")
policies.declare("fedstill.participation.power_of_choice", "power-of-choice")
policies.declare("fedstill.participation.weighted", "battery-aware")
dropouts.declare("fedstill.participation.trace", "trace")
