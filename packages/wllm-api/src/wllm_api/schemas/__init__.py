"""What clients may send: one file for each endpoint, field tables included."""
