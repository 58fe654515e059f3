//! Namespaces that are wrong or missing.

use super::super::namespaces::{ATOM, Ns};
use super::Repair;
use super::start_tag::StartTag;

impl<'i> Repair<'i, '_> {
    /// Gives the root the namespace of its format, and drops declarations that XML does not allow.
    pub(super) fn mend_namespaces(&mut self, tag: &mut StartTag<'i>, offset: usize) {
        // A prefix cannot be undeclared in XML 1.0. It is declared anew where it is used.
        let is_undeclared =
            |(name, value, _): &(&str, &str, usize)| name.starts_with("xmlns:") && value.is_empty();
        if tag.attributes.iter().any(is_undeclared) {
            self.warn(offset, "a declaration of a prefix without its namespace was dropped");
            tag.attributes.retain(|attribute| !is_undeclared(attribute));
        }
        if !self.open.is_empty() {
            return;
        }
        let declared = tag.attributes.iter().position(|(name, ..)| *name == "xmlns");
        let found = Ns::of(declared.map_or("", |at| tag.attributes[at].1));
        match (tag.name, declared) {
            ("feed", Some(at)) if found != Ns::Atom => tag.attributes[at].1 = ATOM,
            ("feed", None) => tag.attributes.push(("xmlns", ATOM, 0)),
            ("rss", Some(at)) if found != Ns::Rss => drop(tag.attributes.remove(at)),
            _ => return,
        }
        self.warn(offset, format_args!("the namespace of <{}> is not that of its format", tag.name));
    }
}
