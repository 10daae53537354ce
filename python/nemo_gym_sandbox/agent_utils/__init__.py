"""What agent servers build on sandboxes; ``nemo_gym.agent_utils`` for code that was written for that."""
