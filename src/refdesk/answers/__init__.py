"""Answers with citations, written by a model or quoted from the documents."""

from refdesk.answers.question import EXTRACTIVE, Question, WrittenAnswer
from refdesk.answers.writing import Answers, open_answers

__all__ = ["EXTRACTIVE", "Answers", "Question", "WrittenAnswer", "open_answers"]
