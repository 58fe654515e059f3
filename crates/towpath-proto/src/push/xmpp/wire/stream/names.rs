//! Names of tags and attributes, and interned namespaces.

use std::sync::Arc;

/// Maximum number of interned namespaces. A hostile peer may declare a new one in every stanza.
const REMEMBERED: usize = 32;

/// Interned namespaces, shared between stanzas.
#[derive(Debug, Default)]
pub(super) struct NameInterner(Vec<Arc<str>>);

impl NameInterner {
    pub(super) fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| known.as_ref() == name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        if self.0.len() < REMEMBERED {
            self.0.push(new.clone());
        }
        new
    }
}

/// Returns `true` for a QName of Namespaces in XML 1.0. Every character beyond ASCII counts as a letter.
pub(super) fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') || !c.is_ascii())
    };
    match name.split_once(':') {
        Some((prefix, local)) => is_part(prefix) && is_part(local),
        None => is_part(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_xml_has_them() {
        for good in ["a", "stream:stream", "_a-1.b", "é", "a:é1"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ":", "a:", ":a", "1a", "-a", "a:b:c", "a\"", "a<", "a=b", "a/"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
