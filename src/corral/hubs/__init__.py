"""Where the files of models come from: references, the hubs that serve them, and what a file says about itself."""
