"""Games of other packages as text environments; importing one of the modules registers its environment."""
