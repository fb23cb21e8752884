"""Pictures of the web page, for the docs and for those who change how it looks."""
