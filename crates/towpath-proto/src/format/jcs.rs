//! The JSON Canonicalization Scheme (RFC 8785).
