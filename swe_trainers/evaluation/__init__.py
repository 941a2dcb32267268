"""Measuring a model: any server of OpenAI's chat API, or a model in a folder, on any text environment of Gymnasium."""
