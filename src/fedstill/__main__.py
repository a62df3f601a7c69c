"""`python -m fedstill`, where the command is not on the path."""

from fedstill.cli import main

if __name__ == "__main__":
    main()
