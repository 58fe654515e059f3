//! JSON Feed 1.0 and 1.1: reading and writing.
