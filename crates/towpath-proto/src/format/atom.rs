//! Atom 1.0 (RFC 4287): reading and writing.
