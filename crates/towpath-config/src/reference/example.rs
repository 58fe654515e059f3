//! The annotated example: every key of the configuration, with its meaning.

use std::fmt::Write as _;

use super::toml_value::assignment;
use crate::schema::{Key, Section, json_schema_sections};

/// Longest line of the example's comments.
const WIDTH: usize = 100;

const HEAD: &str = "\
# Every key of towpath's configuration, with its meaning.
#
# All but the first feed is commented out: the values that are shown are the defaults, or examples where there is no
# default. Remove the marks of what you want to set. `towpath config check` shows all mistakes at once.
";

/// Returns a configuration with every key, of which all but one feed is commented out.
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    for section in json_schema_sections() {
        if section.path.is_empty() {
            text.push_str(&keys(&section, true));
            continue;
        }
        text.push('\n');
        comment(&mut text, &section.about);
        // A feed shows what works; its tables would each need values that belong together.
        let is_live = section.path == ["feed"] || section.path == ["server"];
        let _ = writeln!(text, "{}{}", if is_live { "" } else { "# " }, section.heading());
        text.push_str(&keys(&section, !is_live));
    }
    text
}

fn keys(section: &Section, is_comment: bool) -> String {
    let mut text = String::new();
    for key in &section.keys {
        text.push('\n');
        comment(&mut text, &about(section, key));
        let Some(example) = key.default.as_ref().or(key.example.as_ref()) else { continue };
        let mark = if is_comment || !key.is_required { "# " } else { "" };
        let _ = writeln!(text, "{mark}{}", assignment(&key.name, example));
    }
    text
}

fn about(section: &Section, key: &Key) -> String {
    let mut about = key.about.clone();
    if !key.choices.is_empty() {
        let values: Vec<_> = key.choices.iter().map(|(value, _)| format!("{value:?}")).collect();
        let _ = write!(about, " One of {}.", values.join(", "));
    }
    if let Some(default) = &key.default_text {
        let _ = write!(about, " Default: {default}.");
    }
    if let Some(variable) = key.variable(section) {
        let _ = write!(about, " Environment: {variable}.");
    }
    about
}

/// Writes a comment, in lines of at most [`WIDTH`] characters.
fn comment(text: &mut String, about: &str) {
    let mut line = String::from("#");
    for word in about.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}
