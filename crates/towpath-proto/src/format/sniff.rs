//! Which format and which character set some bytes are.
