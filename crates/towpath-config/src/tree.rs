//! The parsed texts of a configuration, merged into one table.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::files::shifted;

/// Step of the way to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    Index(usize),
}

/// A key that two texts set: its name, and both places.
#[derive(Debug)]
pub(super) struct DuplicateKey {
    pub(super) key: String,
    pub(super) first: usize,
    pub(super) second: usize,
}

/// Moves a table to the offsets of its text.
pub(super) fn shift_table(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let moved = table.into_iter().map(|(key, value)| {
        // Places count through all texts as if they were one, so a place alone tells the file.
        let key = Spanned::new(shifted(&key.span(), by), key.into_inner());
        (key, shift_value(value, by))
    });
    moved.collect()
}

fn shift_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = shifted(&value.span(), by);
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(shift_table(table, by)),
        DeValue::Array(values) => {
            DeValue::Array(values.into_iter().map(|value| shift_value(value, by)).collect())
        }
        other => other,
    };
    Spanned::new(span, value)
}

/// Adds the keys of a table to another. Arrays of tables are joined, and tables are merged key by key.
pub(super) fn merge<'a>(
    into: &mut DeTable<'a>,
    from: DeTable<'a>,
    path: &mut Vec<String>,
    duplicates: &mut Vec<DuplicateKey>,
) {
    for (key, value) in from {
        path.push(key.get_ref().to_string());
        match into.get_mut(key.get_ref().as_ref()) {
            None => drop(into.insert(key, value)),
            Some(first) => {
                let first_place = first.span().start;
                match (first.get_mut(), value.into_inner()) {
                    (DeValue::Table(into), DeValue::Table(from)) => merge(into, from, path, duplicates),
                    // Other lists are not joined: a list of tokens in two files is more likely a mistake than
                    // meant.
                    (DeValue::Array(into), DeValue::Array(from)) if has_tables(into) && has_tables(&from) => {
                        from.into_iter().for_each(|value| into.push(value));
                    }
                    _ => duplicates.push(DuplicateKey {
                        key: path.join("."),
                        first: first_place,
                        second: key.span().start,
                    }),
                }
            }
        }
        path.pop();
    }
}

fn has_tables(values: &[Spanned<DeValue<'_>>]) -> bool {
    values.iter().all(|value| value.get_ref().is_table())
}

/// Sets a value, and makes the tables that lead to it.
pub(super) fn set<'a>(table: &mut DeTable<'a>, path: &[&'a str], value: Spanned<DeValue<'a>>) {
    let Some((first, rest)) = path.split_first() else { return };
    let key = Spanned::new(value.span(), (*first).into());
    if rest.is_empty() {
        table.insert(key, value);
        return;
    }
    let span = value.span();
    // The environment overrides the file, also where the file has a value in the place of the table.
    if !table.get(*first).is_some_and(|value| value.get_ref().is_table()) {
        table.insert(key, Spanned::new(span, DeValue::Table(DeTable::new())));
    }
    if let Some(DeValue::Table(inner)) = table.get_mut(*first).map(Spanned::get_mut) {
        set(inner, rest, value);
    }
}

/// Returns the place of a value. For a key that is absent it is the place of the table around it.
pub(super) fn place_of(table: &DeTable<'_>, path: &[PathStep]) -> Option<usize> {
    let Some((PathStep::Key(key), rest)) = path.split_first() else { return None };
    let value = table.get(key.as_str())?;
    let inner = match (value.get_ref(), rest.split_first()) {
        (DeValue::Table(inner), Some(_)) => place_of(inner, rest),
        (DeValue::Array(values), Some((PathStep::Index(index), rest))) => {
            let element = values.get(*index)?;
            match element.get_ref() {
                DeValue::Table(inner) => place_of(inner, rest).or(Some(element.span().start)),
                _ => Some(element.span().start),
            }
        }
        _ => None,
    };
    inner.or(Some(value.span().start))
}

/// Finds the keys that lead to the value, or key, at a place.
pub(super) fn keys_at(table: &DeTable<'_>, place: usize) -> Vec<String> {
    let mut found = Vec::new();
    find(table, place, &mut Vec::new(), &mut found);
    found
}

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

/// Removes the innermost entry at a place. Returns the table or tables around it, from the outermost.
///
/// An element of an array of tables is an entry of its own. Other arrays are removed whole.
pub(super) fn remove_at(table: &mut DeTable<'_>, place: usize) -> Option<Vec<PathStep>> {
    let mut outer = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref().to_string();
        if key.span().contains(&place) {
            outer = Some((name, None));
            break;
        }
        let is_here = value.span().contains(&place);
        let inner = match value.get_mut() {
            DeValue::Table(inner) => remove_at(inner, place),
            DeValue::Array(values) => remove_element(values, place),
            _ => None,
        };
        if inner.is_some() || is_here {
            outer = Some((name, inner));
            break;
        }
    }
    let (name, inner) = outer?;
    match inner {
        Some(mut steps) => {
            steps.insert(0, PathStep::Key(name));
            Some(steps)
        }
        None => {
            table.remove(name.as_str());
            Some(Vec::new())
        }
    }
}

fn remove_element<'a>(values: &mut DeArray<'a>, place: usize) -> Option<Vec<PathStep>> {
    let mut here = None;
    for (index, value) in values.iter_mut().enumerate() {
        let is_here = value.span().contains(&place);
        let DeValue::Table(inner) = value.get_mut() else { continue };
        if let Some(mut steps) = remove_at(inner, place) {
            steps.insert(0, PathStep::Index(index));
            return Some(steps);
        }
        if is_here {
            here = Some(index);
        }
    }
    let here = here?;
    let others = values.iter().enumerate().filter(|(index, _)| *index != here);
    *values = others.map(|(_, value)| value.clone()).collect();
    Some(Vec::new())
}
