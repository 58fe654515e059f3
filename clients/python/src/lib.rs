//! The extension module of the Python package `towpath`: follows, checks and requests of `towpath-client`, and the
//! destinations of `towpath-sinks`.
//!
//! The package's interface is in `python/towpath`; this module is private to it. Nothing here keeps a thread or a
//! runtime beyond the object that started it.

mod change;
mod destination;
mod errors;
mod options;
mod reader;
mod requests;
mod wait;

use pyo3::prelude::*;

/// Functions and classes that `python/towpath` is made of.
// The classes are frozen or hold a lock, so the module needs no global interpreter lock.
#[pymodule(gil_used = false)]
mod _towpath {
    #[pymodule_export]
    use super::change::Change;
    #[pymodule_export]
    use super::destination::copy_into;
    #[pymodule_export]
    use super::reader::Reader;
    #[pymodule_export]
    use super::requests::{check, discover, publish};
    #[pymodule_export]
    use super::version;
}

/// Returns the version of the package.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
