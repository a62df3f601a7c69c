"""Selection, batteries, clusters, dropout and replacement; importing this package registers all of their kinds."""

from fedstill.participation.attendance import Participants
from fedstill.participation.clustered import Clustered
from fedstill.participation.clusters import Clusters
from fedstill.participation.dropout import Bursty, Dropout, Independent, NoDropout, dropouts
from fedstill.participation.fleet import Fleet
from fedstill.participation.label_balanced import LabelBalanced
from fedstill.participation.policies import Everyone, Policy, Random, policies
from fedstill.participation.power_of_choice import PowerOfChoice
from fedstill.participation.replacement import replacements
from fedstill.participation.trace import Trace
from fedstill.participation.weighted import BatteryAware

__all__ = [
    "BatteryAware",
    "Bursty",
    "Clustered",
    "Clusters",
    "Dropout",
    "Everyone",
    "Fleet",
    "Independent",
    "LabelBalanced",
    "NoDropout",
    "Participants",
    "Policy",
    "PowerOfChoice",
    "Random",
    "Trace",
    "dropouts",
    "policies",
    "replacements",
]
