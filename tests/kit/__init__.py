"""The testing kit: real servers, doubles that pass conformance, and a clock that moves by hand. Never shipped."""
