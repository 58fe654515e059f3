//! The publisher's side of XMPP: a component that serves nodes and pushes to their subscribers.

pub mod component;
pub mod component_stream;
pub mod disco;
pub mod entry;
pub mod fanout;
