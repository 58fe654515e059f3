//! Checks of all documents that run nothing: no command is left out unnoticed, and links lead somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use super::blocks::Document;
use super::{Source, is_marked};

/// Languages of shells. Commands of documents are `console` blocks, which show what they print.
const SHELLS: [&str; 7] = ["sh", "bash", "zsh", "fish", "shell", "shell-session", "shellsession"];
/// Documents whose commands another check runs: `readme.rs`.
const ELSEWHERE: [&str; 1] = ["README.md"];

/// Fails with every fault of the documents at once.
pub(crate) fn check(documents: &[Source]) -> Result<(), String> {
    let faults: Vec<String> = documents.iter().flat_map(|source| faults(source, documents)).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn faults(source: &Source, all: &[Source]) -> Vec<String> {
    let document = Document::parse(&source.text);
    let mut faults = Vec::new();
    let mut fault = |line: usize, text: String| faults.push(format!("{}:{line}: {text}", source.name));
    let is_run = is_marked(&source.text) || ELSEWHERE.contains(&source.name.as_str());
    for block in &document.blocks {
        if block.language.is_empty() {
            fault(block.line, "a block without a language; `text` is one".into());
        }
        if SHELLS.contains(&block.language) && block.file.is_none() {
            fault(block.line, "commands are `console` blocks, which the tests run".into());
        }
        if block.language != "console" {
            continue;
        }
        if !block.lines.first().is_some_and(|line| line.starts_with("$ ")) {
            fault(block.line, "a console block begins with a command: `$ …`".into());
        }
        if !is_run && block.not_run.is_none() {
            let marks = "`<!-- run -->` in the page runs its commands, `<!-- not run: REASON -->` above a block leaves it out";
            fault(block.line, format!("commands that no test runs: {marks}"));
        }
    }
    for (line, text) in indented(&document) {
        fault(line, format!("an indented block: fence it, and name its language: {}", text.trim()));
    }
    for (line, target) in links(&document) {
        if let Err(why) = resolve(source, target, all) {
            fault(line, format!("the link to {target} leads nowhere: {why}"));
        }
    }
    faults
}

/// First lines of indented blocks of code.
fn indented<'a>(document: &Document<'a>) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    for &(line, text) in &document.prose {
        // After a block too: its last line counts as a blank one.
        let follows_blank =
            before.is_none_or(|(number, before)| before.trim().is_empty() || number + 1 < line);
        if follows_blank && text.starts_with("    ") && !text.trim().is_empty() {
            found.push((line, text));
        }
        before = Some((line, text));
    }
    found
}

/// Targets of links within the repository.
fn links<'a>(document: &Document<'a>) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for &(line, text) in &document.prose {
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") && !target.is_empty() {
                found.push((line, target));
            }
        }
    }
    found
}

fn resolve(source: &Source, target: &str, all: &[Source]) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let page = if path.is_empty() {
        source
    } else {
        let file = source.path.parent().unwrap_or(Path::new(".")).join(path);
        let Ok(file) = file.canonicalize() else { return Err("no such file".into()) };
        match all.iter().find(|page| page.path.canonicalize().is_ok_and(|path| path == file)) {
            Some(page) => page,
            None => return Ok(()),
        }
    };
    match anchor {
        Some(anchor) if !anchors(&page.text).contains(anchor) => Err("no such heading".into()),
        _ => Ok(()),
    }
}

/// Names of the headings of a page, as GitHub makes them, and of its `<a id>`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in Document::parse(text).prose {
        for rest in line.split("<a id=\"").skip(1) {
            anchors.extend(rest.split('"').next().map(str::to_owned));
        }
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let name = anchor(heading.trim());
        // A heading that comes again gets a number.
        let number = (0..)
            .map(|n| if n == 0 { name.clone() } else { format!("{name}-{n}") })
            .find(|name| !anchors.contains(name));
        anchors.extend(number);
    }
    anchors
}

fn anchor(heading: &str) -> String {
    // Of a link the text remains.
    let mut plain = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let kept = plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let page = Source { name: "a.md".into(), path: "/a.md".into(), text: text.into() };
        faults(&page, std::slice::from_ref(&page))
    }

    #[test]
    fn commands_that_no_test_runs_are_faults() {
        let block = "```console\n$ towpath\n```\n";
        assert_eq!(told(&format!("<!-- run -->\n{block}")), [""; 0]);
        assert_eq!(told(&format!("<!-- not run: needs root -->\n{block}")), [""; 0]);
        assert!(
            told(&format!("{block}<!-- not run: too late -->\n"))[0].starts_with("a.md:1: commands that")
        );
        assert_eq!(told("```toml\nx = 1\n```\n"), [""; 0]);
        for wrong in [
            "```sh\ntowpath\n```\n",
            "```\ntowpath\n```\n",
            "<!-- run -->\n```console\ntowpath\n```\n",
            "a\n\n    towpath\n",
            "```toml\n```\n    towpath\n",
        ] {
            assert_eq!(told(wrong).len(), 1, "{wrong}");
        }
        assert_eq!(told("- a\n    b\n\n  c\n"), [""; 0]);
    }

    #[test]
    fn links_lead_to_headings() {
        let text = "# A `b`, c\n## [x](y) z\n# A `b`, c\n[t](#a-b-c) [t](#x-z) [t](#a-b-c-1) <https://a>\n";
        // `y` is no file.
        assert_eq!(told(text).len(), 1, "{:?}", told(text));
        assert!(told("[t](#none)")[0].contains("no such heading"));
        assert!(told("[t](none.md)")[0].contains("no such file"));
    }

    #[test]
    fn the_documents_have_no_faults() {
        check(&super::super::documents().unwrap()).unwrap();
    }
}
