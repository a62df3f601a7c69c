"""Names of earlier releases, for sentences that say what to rename."""

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
