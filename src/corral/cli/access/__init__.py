"""Commands about who may call the API: `corral login`, `logout`, `whoami`, `password`, `users` and `keys`."""
