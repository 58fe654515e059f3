//! Hints at near misses of unknown keys and values.

use super::schema::json_schema_sections;

/// Similarity from which another name is taken for the one that was meant.
const NEAR: f64 = 0.75;

/// Adds to an error of an unknown name what was probably meant.
///
/// `table` leads to the table of the key.
pub(super) fn with_hint(message: &str, table: &[String]) -> String {
    let Some((name, known)) = unknown_name(message) else { return message.to_owned() };
    let error = message.split(", expected").next().unwrap_or(message);
    if let Some(near) = nearest(name, &known) {
        return format!("{error}; did you mean `{near}`?");
    }
    let elsewhere = if message.starts_with("unknown field") { tables_with(name, table) } else { Vec::new() };
    if !elsewhere.is_empty() {
        return format!("{error}; `{name}` is a key of {}", elsewhere.join(", "));
    }
    message.to_owned()
}

/// Returns the name, and the known ones, of an error such as ``unknown field `x`, expected one of `a`, `b` ``.
fn unknown_name(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field ").or_else(|| message.strip_prefix("unknown variant "))?;
    let (name, expected) = rest.strip_prefix('`')?.split_once("`, expected ")?;
    Some((name, expected.split('`').skip(1).step_by(2).collect()))
}

/// Returns the name among known ones that was probably meant.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|known| (strsim::normalized_damerau_levenshtein(name, known), *known));
    let contained =
        known.iter().filter(|known| name.len() > 3 && known.contains(name)).map(|known| (NEAR, *known));
    let best = scored.chain(contained).max_by(|a, b| a.0.total_cmp(&b.0))?;
    // Of a short name, one letter is a large share.
    let near = if name.len() <= 4 { 0.6 } else { NEAR };
    (best.0 >= near).then_some(best.1)
}

/// Returns the headings of the other tables that have a key.
fn tables_with(name: &str, table: &[String]) -> Vec<String> {
    let sections = json_schema_sections().into_iter().filter(|section| section.path != table);
    let found = sections.filter(|section| {
        let is_table = section.path.last().is_some_and(|last| last == name);
        is_table || section.keys.iter().any(|key| key.name == name)
    });
    let heading = |section: super::schema::Section| match section.path.is_empty() {
        true => "the file itself".to_owned(),
        false => section.heading(),
    };
    found.map(heading).take(4).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use std::path::Path;

    #[test]
    fn near_misses_are_named() {
        for (text, hint) in [
            ("[server]\nlisen = 'x'", "did you mean `listen`?"),
            ("[[feed]]\nid = 'aa'\n[feed.source]\nurl = 'x'\nevry = '5m'", "did you mean `every`?"),
            ("[[feed]]\nid = 'aa'\nurl = 'x'", ", [feed.source], "),
            (
                "[[feed]]\nid = 'aa'\n[feed.source]\nurl = 'x'\nformat = 'json-feed'",
                "did you mean `json_feed`?",
            ),
            ("[[feeds]]\nid = 'aa'", "did you mean `feed`?"),
            ("[server]\ncache = 5", "did you mean `cache_mib`?"),
            ("[server]\nzzzz = 5", "expected one of"),
            ("data = 'x'", "`data` is a key of [server]"),
        ] {
            let error = Config::parse(text, Path::new("towpath.toml")).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
