//! From the text of a configuration to its values. Errors name the line and the key, and show neither.
//!
//! The parser's own errors print the line, with whatever secret is in it. Logs and tickets would then have it.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use towpath_client::redact;

use super::variables::{Environment, Replacer, Variables};

/// Keys whose values, and all below, are secrets.
const SECRET_KEYS: [&str; 7] = ["tokens", "token", "hash", "readers", "headers", "secret", "cluster"];

/// Parses a text, and returns the variables that were replaced in it.
pub(super) fn deserialize<T: DeserializeOwned>(
    text: &str,
    folder: &Path,
    environment: &Environment,
) -> Result<(T, Variables), String> {
    // A description of the grammar only: it has nothing of the text.
    let mut root =
        DeTable::parse(text).map_err(|e| at(text, e.span().map(|span| span.start), e.message()))?;
    let mut replacer = Replacer { folder, environment, variables: Variables::default() };
    replacer.table(root.get_mut()).map_err(|e| at(text, Some(e.at), &e.message))?;
    let variables = replacer.variables;
    let read = T::deserialize(toml::Deserializer::from(root));
    read.map_err(|e| variables.hide(describe(text, &e))).map(|value| (value, variables))
}

/// Describes an error of the values.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else {
        // Without a place the error ends with the key, in a line of its own.
        return redact::text(error.to_string().trim_end());
    };
    let mut keys = Vec::new();
    if let Ok(root) = DeTable::parse(text) {
        find(root.get_ref(), span.start, &mut Vec::new(), &mut keys);
    }
    let is_secret = keys.iter().any(|key| SECRET_KEYS.contains(&key.as_str()));
    let message = if is_secret { unquoted(error.message()) } else { redact::text(error.message()) };
    let key = if keys.is_empty() { String::new() } else { format!("{}: ", keys.join(".")) };
    at(text, Some(span.start), &format!("{key}{message}"))
}

/// Finds the keys that lead to the value, or key, at a place of the text.
fn find(table: &DeTable<'_>, place: usize, path: &mut Vec<String>, found: &mut Vec<String>) {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        if key.span().contains(&place) || value.span().contains(&place) {
            found.clone_from(path);
        }
        // Also where the place is outside: the span of `[table]` ends with its header.
        descend(value, place, path, found);
        path.pop();
    }
}

fn descend(value: &Spanned<DeValue<'_>>, place: usize, path: &mut Vec<String>, found: &mut Vec<String>) {
    match value.get_ref() {
        DeValue::Table(table) => find(table, place, path, found),
        DeValue::Array(values) => values.iter().for_each(|value| descend(value, place, path, found)),
        _ => {}
    }
}

/// Removes what an error quotes of the text.
fn unquoted(message: &str) -> String {
    let mut shown = String::new();
    // `invalid type: string "x", expected y`: what was expected is ours, and quoted with the other mark.
    let (given, expected) = message.rsplit_once(", expected ").unwrap_or((message, ""));
    for (index, part) in given.split(['"', '`']).enumerate() {
        shown.push_str(if index % 2 == 0 { part } else { "…" });
        // An escaped mark within a quotation would swap inside and outside.
        if part.ends_with('\\') {
            shown.push('…');
            break;
        }
    }
    if expected.is_empty() { shown } else { format!("{shown}, expected {expected}") }
}

/// Adds the line and the column to a message.
fn at(text: &str, place: Option<usize>, message: &str) -> String {
    let Some(before) = place.and_then(|place| text.get(..place)) else { return message.to_owned() };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {message}")
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("towpath.toml")).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, shown) in [
            ("[server]\nlisten = \"x\"\n", "line 2, column 10: server.listen: invalid socket address syntax"),
            (
                "[[feed]]\nid = \"aa\"\nttl = \"soon\"\n",
                "line 3, column 7: feed.ttl: \"soon\" is not a duration",
            ),
            (
                "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 5",
                "line 4, column 7: feed.source.url: invalid type",
            ),
            ("a = \n", "line 1, column 5: "),
            ("[server]\n'ä' = 1\n", "line 2, column 1: server.ä: unknown field"),
        ] {
            let error = error(text);
            assert!(error.contains(&format!("towpath.toml: {shown}")), "{text}: {error}");
        }
    }

    /// Each of these has a secret in a line with a mistake.
    #[test]
    fn no_error_shows_a_secret() {
        for text in [
            "[server]\ntokens = \"hush\"\n",
            "[server]\ntokens = [\"hush]\n",
            "[server]\ntokens = [\"hush\" \"b\"]\n",
            "[server]\ntoken = \"hush\"\n",
            "[server]\ntokens = hush\n",
            "[server]\ntokens = [\"a\", { hush = 1 }]\n",
            "[server]\ncluster = \"nats:/u:hush@host\"\n",
            "[server]\ncluster = \"http://u:hush@host\"\n",
            "[server]\nbase_url = \"ftp://u:hush@host/\"\n",
            "[export]\nto = \"x\"\nbase_url = \"ftp://u:hush@host/\"\n",
            "[xmpp]\nserver = 'a:1'\njid = 'a'\nsecret = [\"hush\"]\n",
            "[xmpp]\nserver = 'a:1'\njid = 'a'\nsecret = \"hush\n",
            "[[token]]\nname = \"a\"\nrights = ['read']\nhash = \"hush\"\n",
            "[[token]]\nname = \"a\"\nrights = ['read']\ntoken = [\"hush\"]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [\"hush\", 5]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [{ token = \"hush\", filter = { tag = \"x\" } }]\n",
            "[[feed]]\nid = \"aa\"\nreaders = [{ token = [\"hush\"], filter = {} }]\n",
            "[[feed]]\nid = \"aa\"\nreaders = \"hush\"\n",
            "[[feed]]\nid = \"aa\"\nreaders = [\"hush\", \"hush\"]\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = \"hush\"\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = { a = [\"hush\"] }\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'http://x/'\nheaders = { a = \"hush\\n\" }\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = 'ftp://u:hush@x/'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = 'htps://x/?key=hush'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = 'http:/u:hush@x/'\n",
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = ['http://u:hush@x/']\n",
        ] {
            let error = error(text);
            assert!(!error.contains("hush"), "{text}: {error}");
            assert!(error.contains("towpath.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn variables_are_shown_by_name() {
        let parse = |text: &str| {
            let environment = |_: &str| Ok("hush-hush".to_owned());
            deserialize::<Config>(text, Path::new("."), &environment)
        };
        let (config, variables) = parse("[xmpp]\nserver = '${X}'\njid = 'a'\nsecret = 'is ${X}'").unwrap();
        assert_eq!(config.xmpp.unwrap().secret.expose(), "is hush-hush");
        assert_eq!(variables.hide("at \"hush-hush\"".into()), "at \"${X}\"");
        let error = parse("[server]\nlisten = '${X}'\n[[feed]]\nid = '${X}'\nttl = '${X}'").unwrap_err();
        assert!(!error.contains("hush"), "{error}");
        let error = parse("[[feed]]\nid = 'aa'\nttl = '${X}'").unwrap_err();
        assert!(error.contains("\"${X}\" is not a duration"), "{error}");
    }
}
