"""Tinker's API, from both sides.

server      `swe-serve --tinker`: models that train and generate for clients of the API
                sessions   who is there, and waits for what        states    saved weights, and samples from them
                training   passes, losses, optimizer steps
policy      `TinkerPolicy`: what a `Trainer` trains where the model is on such a server; `engine` samples from it
"""
