"""`python -m fedloom` is the command line."""

from fedloom_command import main

if __name__ == "__main__":
    main()
