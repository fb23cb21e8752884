"""The frontend's services: load, decide, apply. They carry no tokens and know no HTTP."""
