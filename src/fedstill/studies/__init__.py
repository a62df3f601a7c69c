"""Studies: grids of experiments with seeds, run into one folder and read as one table."""

from fedstill.core.table import Table
from fedstill.studies.grid import GridCell
from fedstill.studies.results import Results, load_results
from fedstill.studies.results_table import make_table, metrics
from fedstill.studies.study import Study

__all__ = ["GridCell", "Results", "Study", "Table", "load_results", "make_table", "metrics"]
