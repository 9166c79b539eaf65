"""The version of the package, of `catmq --version` and of the server, which reads this file alone."""

VERSION = "0.1.0"
