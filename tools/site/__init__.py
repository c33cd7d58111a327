"""The documentation as a site: `make docs` builds it from docs/, the schema and the commands."""
