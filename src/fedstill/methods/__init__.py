"""Federated methods, one file each; importing this package registers them."""

from fedstill.core.protocols import Method
from fedstill.methods.adaptive import FedAdagrad, FedAdam, FedYogi
from fedstill.methods.attacks import Attack, attacks
from fedstill.methods.base import methods
from fedstill.methods.centralised import Centralised
from fedstill.methods.clipped_mean import ClippedMean
from fedstill.methods.clue import Clue
from fedstill.methods.cures import Cure, cures
from fedstill.methods.distill import Distillation
from fedstill.methods.ditto import Ditto
from fedstill.methods.ensemble import Ensemble
from fedstill.methods.fed3d import Fed3D
from fedstill.methods.fedavg import FedAvg, FedAvgSettings
from fedstill.methods.fedavgm import FedAvgM
from fedstill.methods.fedbn import FedBn
from fedstill.methods.feddf import FedDF
from fedstill.methods.feddyn import FedDyn
from fedstill.methods.fedgkt import FedGkt
from fedstill.methods.fedmd import FedMD
from fedstill.methods.fedmedian import FedMedian
from fedstill.methods.fednova import FedNova
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fine_tuned import FineTuned
from fedstill.methods.krum import Krum, MultiKrum
from fedstill.methods.local_only import LocalOnly
from fedstill.methods.moon import Moon
from fedstill.methods.peers import PeerMethod
from fedstill.methods.pfnm import PFNM
from fedstill.methods.privacy import Privacy, privacies
from fedstill.methods.qkt import QKT, NaiveKD
from fedstill.methods.qkt_light import QKTLight
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.single_image import SingleImage
from fedstill.methods.trimmed_mean import TrimmedMean

__all__ = [
    "PFNM",
    "QKT",
    "Attack",
    "Centralised",
    "ClippedMean",
    "Clue",
    "Cure",
    "Distillation",
    "Ditto",
    "Ensemble",
    "Fed3D",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgSettings",
    "FedBn",
    "FedDF",
    "FedDyn",
    "FedGkt",
    "FedMD",
    "FedMedian",
    "FedNova",
    "FedProx",
    "FedYogi",
    "FineTuned",
    "Krum",
    "LocalOnly",
    "Method",
    "Moon",
    "MultiKrum",
    "NaiveKD",
    "PeerMethod",
    "Privacy",
    "QKTLight",
    "Scaffold",
    "SingleImage",
    "TrimmedMean",
    "attacks",
    "cures",
    "methods",
    "privacies",
]
