"""Studies: grids of experiments with seeds, run into one folder and read as one table."""

from fedstill.core.table import Table
from fedstill.studies.grid import Cell
from fedstill.studies.results import Results, load_results
from fedstill.studies.study import Study
from fedstill.studies.table import make_table, metrics

__all__ = ["Cell", "Results", "Study", "Table", "load_results", "make_table", "metrics"]
