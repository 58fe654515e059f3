//! Multipart bodies (RFC 2046, section 5.1): a streaming parser and a writer.
