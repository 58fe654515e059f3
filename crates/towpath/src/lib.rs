//! towpath as a library: what the program is made of.

pub mod client;
