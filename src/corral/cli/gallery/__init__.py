"""`corral gallery`: which backends galleries offer, and whether an index of models is sound."""
