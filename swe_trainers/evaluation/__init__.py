"""Evaluation of a model, behind a chat endpoint or in a folder, on any text environment of Gymnasium."""
