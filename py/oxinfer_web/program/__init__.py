"""A model as a program of records: what records there are, how they are recorded from ops, planned and encoded."""
