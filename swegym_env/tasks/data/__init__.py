"""The datasets that come with the package: one file each, with its data in a folder of the same name."""
