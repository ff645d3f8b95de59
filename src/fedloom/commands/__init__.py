"""The commands of the command line, one file for each group of them."""
