//! The Link header (RFC 8288).
