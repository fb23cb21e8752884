"""Fetching files of models over HTTP: in a process of its own, in parallel, and resumed after a kill at any byte."""
