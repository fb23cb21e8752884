"""Commands that run Corral's processes on this machine, and `corral worker backends`, which needs no frontend."""
