"""Image signatures: policies of galleries, and whether a signature satisfies one.

Does no network I/O: `corral.oci` fetches what is checked. Modules that need large libraries are imported only when
there is something to check.
"""
