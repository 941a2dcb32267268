"""The interface of an agent: actions and their formats, tools, prompts, observations."""
