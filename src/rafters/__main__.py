"""`python -m rafters`: the command line where the `rafters` script is not installed."""

from rafters.cli import app

app(prog_name="rafters")
