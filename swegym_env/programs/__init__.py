"""Any agent is an environment: a program in the sandbox asks a language model, and the policy answers.

spec             what an agent program is: `agent.yaml`, and those of the package in `shipped/`
env              `SWEAgentEnv`: a request is the observation, the answer the action
protocols/       the protocols of requests
conversations    which conversation a request continues
answers          from an action to a model's answer
"""
