"""One act on many nodes, whatever it is about: operations, targets, intents with a kind, dispatch, progress, proof."""
