"""The words of pages, defined where they are read."""

from __future__ import annotations

from fedstill.core.table import Column, Table, make_table, text
from fedstill.report.page import PageSection

AUDIT = {
    "teacher, student": "a trained model, and the model that learns from its outputs",
    "objective": "the loss with which a student learns from a teacher",
    "label-free control": "the same student, objective and teacher, trained without labels",
    "labels-only student": "the same student trained on labels, without a teacher",
    "masking": "accuracy with labels minus accuracy of the label-free control, in points",
    "masked": "the 95 % interval of masking is above the threshold: the labels explain the accuracy, not the teacher",
    "masked by pattern": "without controls: students are alike and better than their teachers, which differ",
    "faithful": "the interval of masking is at or below the threshold: the accuracy comes from the teacher",
    "inconclusive": "the interval includes the threshold: seeds or test samples do not suffice",
    "not assessable": "the objective has no label-free form",
    "tracks its teacher": "students rise with their teachers: r of 0.9 or more over four teachers or more",
    "gain": "accuracy of a student with labels minus that of the labels-only student: what its teacher added",
    "recovery": "accuracy of a student with labels minus that of its teacher",
    "synergy": "accuracy of a student minus the better of its teacher and the labels-only student",
    "ceiling": "the highest share of proxy samples on which labels can outweigh the teacher's outputs",
    "chance": "what always predicting the most frequent class of the test data would score",
    "below chance": "worse than answers that have nothing to do with the samples, e.g. swapped classes",
    "constant": "one class is predicted for every sample",
    "sound": "nothing that is known speaks against this teacher",
    "stale": "of a teacher: BatchNorm statistics that do not fit its weights; of a result: made by earlier code",
    "r": "Pearson's correlation of students and teachers over teachers; 1 if students follow them on a line",
    "95 % interval": "includes the variation of seeds and, where their number is known, of test samples",
}
RUNS = {
    "round": "clients are sampled, train and reply; replies are aggregated, and the model is evaluated",
    "last, best, selected": "the model after the last round; after the round with the best test accuracy, which is"
    " optimistic; after the round chosen on validation data",
    "class accuracy": "the mean over classes of the share of their samples that are right",
    "recall, precision": "of the samples of a class, the share predicted as it; of those predicted as it, the share"
    " that are of it",
    "failure": "a sampled client without an accepted reply: dropped out, empty battery, refused, failed or abstained",
    "partition": "how one data set is split among simulated clients",
    "own models": "clients' personal models; on all classes, or on each client's own mix of classes",
    "sha256": "a digest of the final models: equal digests mean equal bits",
    "stale": "made with a part whose behaviour has changed since: the same command gives other numbers today",
}


def glossary(words: dict[str, str]) -> PageSection:
    """A section with every word of a page and its meaning."""
    columns: tuple[Column[tuple[str, str]], ...] = (
        Column("Word", "word", lambda row: text(row[0]), right=False),
        Column("Meaning", "meaning", lambda row: text(row[1]), right=False),
    )
    table: Table = make_table("words", "Words on this page", columns, list(words.items()))
    return PageSection("words", "Words", tables=[table])
