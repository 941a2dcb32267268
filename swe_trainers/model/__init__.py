"""The policy: language model, tokenizers, chat formats."""
