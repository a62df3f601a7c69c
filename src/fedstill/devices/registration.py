"""Registers the devices package: fleets with batteries, clusters, split distillation."""

BRINGS = {
    "method": {"fedstill.devices.fedgkt": ("fedgkt",)},
    "model": {"fedstill.devices.split_cnn": ("split-cnn", "split-cnn-lite")},
    "participation policy": {"fedstill.devices.clustered": ("clustered",)},
    "section of an experiment": {
        "fedstill.devices.clusters": ("clusters",),
        "fedstill.devices.fleet": ("fleet",),
    },
    "caution about a run": {"fedstill.devices.feature_residual": ("feature residual",)},
    "section of a record": {"fedstill.devices.fleet_record": ("fleet",)},
    "figures of a study": {"fedstill.devices.study_figures": ("devices",)},
    "report section": {"fedstill.devices.report_section": ("devices",)},
    "command": {"fedstill.devices.fleet_command": ("fleet",)},
}
