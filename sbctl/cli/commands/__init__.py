"""One module a group of commands: arguments in, one composed call, a view out."""
