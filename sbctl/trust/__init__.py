"""Trust: keys, signed envelopes, bundles and their verifier. The one owner of the `cryptography` library."""
