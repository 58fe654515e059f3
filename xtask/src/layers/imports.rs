//! Imports between the modules of a crate, read from the paths in its sources.
//!
//! A reader of source text, not a compiler: it knows `use` declarations and paths that begin with `crate`, `super`,
//! `self` or a child module. It needs no crate for that, so `cargo xtask` stays quick to build. Macros that build paths
//! are invisible to it; the workspace has none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Module of a crate: its path from the root, `""` for the root itself.
pub(super) type ModulePath = String;

/// Modules of a crate with their sources.
pub(super) struct Modules(BTreeMap<ModulePath, ModuleSource>);

#[derive(Default)]
struct ModuleSource {
    /// Paths that the module's code names, absolute.
    paths: BTreeSet<String>,
    /// Names that the module re-exports, with their absolute paths.
    exports: BTreeMap<String, String>,
    /// Modules whose every name it re-exports.
    globs: Vec<String>,
}

/// An import: the importing module, and the module that defines the imported name.
pub(super) type Import = (ModulePath, ModulePath);

impl Modules {
    /// Reads all modules below a crate's source folder, without tests.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let mut texts = BTreeMap::new();
        read_folder(folder, "", &mut texts)?;
        Ok(Self::of(texts.iter().map(|(module, text)| (module.as_str(), text.as_str()))))
    }

    /// Takes modules with their texts.
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let texts: BTreeMap<&str, String> = texts
            .into_iter()
            .map(|(module, text)| (module, without_tests(&without_comments(text))))
            .collect();
        let names: BTreeSet<&str> = texts.keys().copied().collect();
        Self(
            texts.iter().map(|(module, text)| ((*module).to_owned(), source(module, text, &names))).collect(),
        )
    }

    /// Returns the modules' paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns all imports between different modules. A name that a module re-exports counts as an import of the module
    /// that defines it.
    pub(super) fn imports(&self) -> BTreeSet<Import> {
        let mut imports = BTreeSet::new();
        for (module, source) in &self.0 {
            for path in &source.paths {
                let target = self.definition(path, 0);
                // A child is declared by its parents: its path passes through them without using them.
                if target != *module {
                    imports.insert((module.clone(), target));
                }
            }
        }
        imports
    }

    /// Returns the module that defines what a path names, through re-exports.
    fn definition(&self, path: &str, depth: usize) -> ModulePath {
        let mut module = path;
        // The longest prefix that is a module; the rest names something in it.
        while !self.0.contains_key(module) {
            module = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        }
        let rest = path.strip_prefix(module).unwrap_or_default().trim_start_matches("::");
        let name = rest.split("::").next().unwrap_or_default();
        // Re-exports may name each other; without a limit a cycle would never end.
        let Some(source) = self.0.get(module).filter(|_| !name.is_empty() && depth < 8) else {
            return module.to_owned();
        };
        if let Some(target) = source.exports.get(name) {
            return self.definition(target, depth + 1);
        }
        for glob in &source.globs {
            let target = self.definition(&format!("{glob}::{name}"), depth + 1);
            if target != *glob {
                return target;
            }
        }
        module.to_owned()
    }
}

fn read_folder(folder: &Path, module: &str, texts: &mut BTreeMap<ModulePath, String>) -> Result<(), String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Tests may import upwards, because they put layers together.
        let is_test = name == "tests" || name.ends_with("_tests") || name == "simulation";
        if is_test {
            continue;
        }
        let child = if module.is_empty() { name.clone() } else { format!("{module}::{name}") };
        if path.is_dir() {
            read_folder(&path, &child, texts)?;
        // `main.rs` is a crate of its own.
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "main" {
            let module = if name == "mod" || name == "lib" { module.to_owned() } else { child };
            texts.insert(module, std::fs::read_to_string(&path).map_err(error)?);
        }
    }
    Ok(())
}

/// Replaces comments and the contents of literals by spaces: neither imports anything, and both may hold braces.
pub(crate) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            // Raw strings have no escapes and end with as many hashes as they began with.
            'r' if rest.starts_with("r\"") || rest.starts_with("r#") && raw_hashes(rest) > 0 => {
                let end = format!("\"{}", "#".repeat(raw_hashes(rest)));
                let start = 2 + raw_hashes(rest);
                rest.get(start..).and_then(|t| t.find(&end)).map_or(rest.len(), |at| start + at + end.len())
            }
            '"' => string_end(rest),
            // A character, but no lifetime.
            '\'' if rest.starts_with("'\\") => rest[2..].find('\'').map_or(1, |end| end + 3),
            '\'' if rest.chars().nth(2) == Some('\'') => 2 + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ => 0,
        };
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.push(' ');
            rest = &rest[skipped..];
        }
    }
    out
}

/// Returns the number of hashes of a raw string that begins here; 0 if none does.
fn raw_hashes(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|b| *b == b'#').count();
    if text[1 + hashes..].starts_with('"') { hashes } else { 0 }
}

fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Removes the items below `#[cfg(test)]`. Comments are gone already.
pub(crate) fn without_tests(text: &str) -> String {
    const TEST: &str = "#[cfg(test)]";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(TEST) {
        out.push_str(&rest[..at]);
        let item = &rest[at + TEST.len()..];
        let end = item.find([';', '{']).unwrap_or(item.len());
        // `use …;` and `mod tests;` end at the semicolon, anything else with its block.
        let end = if item[end..].starts_with('{') { end + braces_end(&item[end..]) } else { end + 1 };
        rest = item.get(end..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Returns the length of a block in braces.
fn braces_end(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn source(module: &str, text: &str, modules: &BTreeSet<&str>) -> ModuleSource {
    let mut source = ModuleSource::default();
    let mut code = String::new();
    let mut rest = text;
    while let Some((at, is_public)) = next_use(rest) {
        code.push_str(&rest[..at]);
        let tree = &rest[at + "use ".len()..];
        let end = tree.find(';').unwrap_or(tree.len());
        for (path, name) in leaves(&tree[..end]) {
            let Some(path) = absolute(&path, module, modules) else { continue };
            if !is_public {
                source.paths.insert(path);
            } else if name == "*" {
                source.globs.push(path);
            } else {
                source.exports.insert(name, path);
            }
        }
        rest = tree.get(end..).unwrap_or_default();
    }
    code.push_str(rest);
    source.paths.extend(inline_paths(&code, module, modules));
    source
}

/// Splits code into the trees of its `use` declarations and the rest.
pub(crate) fn split_uses(text: &str) -> (Vec<&str>, String) {
    let (mut trees, mut code, mut rest) = (Vec::new(), String::new(), text);
    while let Some((at, _)) = next_use(rest) {
        code.push_str(&rest[..at]);
        let tree = &rest[at + "use ".len()..];
        let end = tree.find(';').unwrap_or(tree.len());
        trees.push(&tree[..end]);
        rest = tree.get(end..).unwrap_or_default();
    }
    code.push_str(rest);
    (trees, code)
}

/// Returns the position of the next `use`, and whether it re-exports.
fn next_use(text: &str) -> Option<(usize, bool)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("use ")?;
        let line = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        // Elsewhere in a line, "use " is the end of another word.
        if line.is_empty() || line.starts_with("pub") {
            return Some((at, line.starts_with("pub")));
        }
        from = at + 4;
    }
}

/// Splits a use tree into paths, each with the name that it imports.
pub(crate) fn leaves(tree: &str) -> Vec<(String, String)> {
    let tree = tree.trim();
    if let Some((prefix, inner)) = tree.split_once('{') {
        // The last brace: trees nest.
        let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
        let mut all = Vec::new();
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let part = inner[start..at].trim();
                    if !part.is_empty() {
                        all.extend(leaves(&format!("{}{part}", prefix.trim())));
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
        return all;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let path: String = path.split_whitespace().collect();
    let path = path.strip_suffix("::self").unwrap_or(&path);
    let last = path.rsplit("::").next().unwrap_or_default();
    let name = alias.map_or(last, str::trim).to_owned();
    vec![(path.strip_suffix("::*").unwrap_or(path).to_owned(), name)]
}

/// Returns a path from the crate's root; `None` if it leads to another crate.
fn absolute(path: &str, module: &str, modules: &BTreeSet<&str>) -> Option<String> {
    let mut segments = path.split("::").peekable();
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match *segments.peek()? {
        "crate" => {
            segments.next();
            at.clear();
        }
        "self" => drop(segments.next()),
        "super" => {
            while segments.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        first => {
            // Any other first word names another crate, or something local.
            let child = if module.is_empty() { first.to_owned() } else { format!("{module}::{first}") };
            modules.get(child.as_str())?;
        }
    }
    at.extend(segments);
    Some(at.join("::"))
}

/// Finds paths in code outside of `use`.
fn inline_paths(code: &str, module: &str, modules: &BTreeSet<&str>) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_part(c)).map(|word| word.trim_matches(':'));
    let paths = words.filter(|word| word.contains("::"));
    paths.filter_map(|path| absolute(path, module, modules)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(texts: &[(&str, &str)]) -> Vec<String> {
        let modules = Modules::of(texts.iter().copied());
        modules.imports().into_iter().map(|(from, to)| format!("{from} -> {to}")).collect()
    }

    #[test]
    fn uses_and_paths_are_imports() {
        let texts = [
            ("", "pub mod a; pub mod b;"),
            ("a", "use crate::b::{self, c::Thing};\nfn f() { super::b::d::g(crate::b::X) }"),
            ("b", "mod c;\nmod d;\npub struct X;"),
            ("b::c", "use super::X;\npub struct Thing;"),
            ("b::d", "use self::e::E; mod e { pub struct E; } pub fn g() {}"),
        ];
        assert_eq!(imports(&texts), ["a -> b", "a -> b::c", "a -> b::d", "b::c -> b"]);
    }

    #[test]
    fn a_reexport_leads_to_the_module_that_defines_the_name() {
        let texts = [
            ("", ""),
            ("a", "use crate::b::{Thing, Renamed};"),
            ("b", "mod c;\nmod d;\npub use c::Thing;\npub(crate) use d::*;"),
            ("b::c", "pub struct Thing;"),
            ("b::d", "pub use crate::b::c::Other as Renamed;"),
        ];
        assert_eq!(imports(&texts), ["a -> b::c"]);
    }

    #[test]
    fn comments_literals_and_tests_import_nothing() {
        let text = "/// See [`crate::b`].\nfn f<'a>(c: &'a str) -> char { g(\"crate::b::X {\", '{', r#\"crate::b\"#) }\n\
                    #[cfg(test)]\nmod tests {\n use crate::b::X; fn t() { if x { } } }\n#[cfg(test)]\nuse crate::b;\n";
        assert_eq!(imports(&[("", ""), ("a", text), ("b", "")]), [""; 0]);
    }

    #[test]
    fn other_crates_are_none_of_our_modules() {
        let texts = [("", ""), ("a", "use std::b; use towpath_store::b::X; fn f() { b::x() }"), ("b", "")];
        assert_eq!(imports(&texts), [""; 0]);
    }
}
