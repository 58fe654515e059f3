//! Fields of a form that a browser sent.

/// Fields of a form, decoded.
#[derive(Debug, Default)]
pub(in crate::server::console) struct FormData(Vec<(String, String)>);

impl FormData {
    pub(super) fn parse(body: &[u8]) -> Self {
        let pairs = url::form_urlencoded::parse(body);
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Returns a field as it was sent; empty without it.
    pub(in crate::server::console) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    }

    /// Returns a field without surrounding white space; `None` if nothing is left.
    pub(super) fn given(&self, name: &str) -> Option<String> {
        Some(self.text(name).trim()).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// Returns the lines of a field.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let lines = self.text(name).lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }
}
