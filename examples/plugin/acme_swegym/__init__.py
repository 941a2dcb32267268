"""One file for each thing that a package can add to swegym-env; pyproject.toml names them."""
