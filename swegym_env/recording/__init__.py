"""Records of episodes on disk: write, read, replay, view."""
