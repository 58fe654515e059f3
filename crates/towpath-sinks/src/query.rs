//! Options behind the `?` of a destination.

use percent_encoding::percent_decode_str;

/// Options as pairs of key and value.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Splits a path from its options. A `?` without a `=` behind it belongs to the path.
    pub fn split(text: &str) -> (&str, Self) {
        match text.rsplit_once('?') {
            Some((path, query)) if query.contains('=') => (path, Self::parse(query)),
            _ => (text, Self::default()),
        }
    }

    /// Parses `key=value&key=value`, with percent-encoding.
    pub fn parse(query: &str) -> Self {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        });
        Self { pairs: pairs.collect() }
    }

    /// Removes and returns the value of a key. The last one counts.
    pub fn take(&mut self, key: &str) -> Option<String> {
        let found = self.pairs.iter().rposition(|(name, _)| name == key).map(|at| self.pairs[at].1.clone());
        self.pairs.retain(|(name, _)| name != key);
        found
    }

    /// Removes a key whose value is `on` or `off`.
    ///
    /// # Errors
    ///
    /// The message for any other value.
    pub fn take_switch(&mut self, key: &str, usual: bool) -> Result<bool, String> {
        match self.take(key).as_deref() {
            None => Ok(usual),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(other) => Err(format!("{key}={other}: expected on or off")),
        }
    }

    /// Refuses options that are left.
    ///
    /// # Errors
    ///
    /// The message, with the options that exist.
    pub fn finish(self, known: &str) -> Result<(), String> {
        match self.pairs.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!("there is no option {key:?}; the options are {known}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts() {
        let (path, mut query) = Query::split("a?b?x=1&y=%26&x=2");
        assert_eq!(path, "a?b");
        assert_eq!((query.take("x").as_deref(), query.take("y").as_deref()), (Some("2"), Some("&")));
        assert_eq!(query.take("x"), None);
        query.finish("x").unwrap();
    }
}
