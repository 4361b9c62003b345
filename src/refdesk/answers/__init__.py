"""Answers with sources: written by a model or quoted from the documents, every citation a passage that was found."""

from refdesk.answers.question import EXTRACTIVE, Question, Written
from refdesk.answers.writing import Answers, open_answers

__all__ = ["EXTRACTIVE", "Answers", "Question", "Written", "open_answers"]
