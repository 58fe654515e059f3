//! RSS 0.9x, 1.0 and 2.0: reading and writing.

mod read;

pub(crate) use read::read;
