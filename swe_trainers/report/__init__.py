"""Reports of training runs: a single HTML file, and its curves as an image."""
