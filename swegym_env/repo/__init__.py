"""Git: repositories, commits, and the patch that an episode leaves."""
