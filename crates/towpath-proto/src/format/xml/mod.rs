//! Parts shared by the XML formats: namespaces, a bounded reader, captured elements, a writer.

mod capture;
mod characters;
mod errors;
mod namespaces;
mod reader;
mod references;
mod repair;
mod repeat;
mod token;
mod write;

pub(crate) use characters::{is_xml_char, is_xml_text};
pub use namespaces::{ATOM, CONTENT, DUBLIN_CORE, FANOUT, HISTORY, TOMBSTONES, TOWPATH, XHTML};
pub(crate) use namespaces::{MEDIA, Ns};
pub(crate) use reader::XmlReader;
pub(crate) use repair::repair;
pub(crate) use token::{Tag, XmlToken};
pub use write::{XmlWriter, escape_attribute, escape_text};
pub(crate) use write::{push_attribute, push_text};
