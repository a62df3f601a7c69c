"""The tables known by name."""

from __future__ import annotations

from dataclasses import replace

from fedstill.data.bundle import Source, datasets
from fedstill.data.layout import Samples
from fedstill.data.readers.raw import FileFindings
from fedstill.data.tabular import TableFiles


class HeartDisease(TableFiles):
    """UCI's heart disease data, whose column `num` is the grade that the label is made from."""

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        given = source.settings
        drop = tuple(dict.fromkeys((*given.drop, "num")))
        settings = given.model_copy(update={"drop": drop, "classes": given.classes or ("healthy", "disease")})
        return super().open(replace(source, settings=settings), found)


datasets.register("heart-disease")(
    HeartDisease(
        "UCI heart disease: 920 patients of four hospitals, 13 features with missing values, ill or not.",
        places=("heart_disease/heart_disease.csv", "heart-disease.csv"),
        get="UCI publishes processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and"
        " processed.va.data (CC BY 4.0): join them with a header, a column `site`, and a column `label` that is healthy"
        " where num is 0 and disease elsewhere",
    )
)
