"""Registers query-based transfer: peer methods, queries, and their outcomes."""

BRINGS = {
    "method": {
        "fedstill.queries.clue": ("clue",),
        "fedstill.queries.ensemble": ("ensemble",),
        "fedstill.queries.pfnm": ("pfnm",),
        "fedstill.queries.qkt": ("naive-kd", "qkt"),
        "fedstill.queries.qkt_light": ("qkt-light",),
    },
    "section of an experiment": {"fedstill.queries.query": ("queries",)},
    "input of a method": {"fedstill.queries.query_input": ("queries",)},
    "artefact of a run": {"fedstill.queries.kept_answers": ("answers",)},
    "figures of a study": {"fedstill.queries.study_figures": ("queries",)},
    "table of a study": {"fedstill.queries.study_table": ("queries",)},
    "page about a study": {"fedstill.queries.study_page": ("queries",)},
    "report section": {"fedstill.queries.report_section": ("queries",)},
    "section of a record": {"fedstill.queries.query_records": ("queries", "query")},
    "summary of a run": {"fedstill.queries.answer_tables": ("queries",)},
    "command": {"fedstill.queries.query_command": ("query",)},
}
