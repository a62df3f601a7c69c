"""Names of earlier releases: those of settings are accepted, those of code are refused by what they are called now."""

# Settings, e.g. the sections of an experiment.
FORMER_SETTINGS = {"cure": "mitigation"}

# What parts of Exchange and Method were called before 0.2, for plugins that still say so.
RENAMED = {
    "merge": "aggregate",
    "least": "min_replies",
    "update": "update_prefix",
    "once": "first_contact_prefix",
    "bulky": "spill_to_disk",
    "also": "extra_models",
    "facts": "metrics",
    "counts": "selectable",
}
