"""Who signed an image: policies of galleries, and whether a signature satisfies one.

Knows no registry and no network: what is checked was fetched by `corral.oci`. Modules that need large libraries are
imported by whoever has something to check, and by nobody else.
"""
